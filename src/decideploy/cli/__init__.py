"""The ``decideploy`` command: one verb for each stage, and the same value as a table or as JSON.

Exit status: 0, or the ``exit_code`` of the error that ended the verb (see ``decideploy.errors``).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from decideploy.cli.output import Command, make_console, print_error
from decideploy.cli.parser import make_parser
from decideploy.errors import ConfigError, Error

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit status. Faults go to standard error, results to standard output."""
    options = make_parser().parse_args(argv)
    command: Command = options.command
    try:
        with _file_faults():
            status = command(options, make_console())
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        return _reader_has_left()
    except Error as error:
        print_error(error, as_json=getattr(options, "json", False))
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _reader_has_left() -> int:
    """End as a program does that the signal of a closed pipe ends: silently, nothing written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


@contextmanager
def _file_faults() -> Iterator[None]:
    """Files that the verbs read and write without a check of their own: every fault is the operator's."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        paths = (error.filename, error.filename2)
        raise ConfigError(
            error.strerror or str(error) or type(error).__name__,
            where=" -> ".join(str(path) for path in paths if path is not None),
            next_step="check that the path is right, its permissions, and that the disk has space",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"an input is not {error.encoding.upper()} text: {error.reason} at byte {error.start}",
            where=repr(error.object[max(error.start - 16, 0) : error.start + 16]),
            next_step="save the file as UTF-8, or name the right one",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            "an input nests deeper than can be read",
            where=str(error),
            next_step="name the right file: none that decideploy reads nests so deep",
        ) from error
