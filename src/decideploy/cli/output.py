"""What every verb prints the same way."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from rich.console import Console

from decideploy.errors import Error

# Without a terminal rich takes 80 columns, and cuts figures that do not fit.
WIDE: Final = 10_000

Command: TypeAlias = Callable[[argparse.Namespace, Console], int]


class AddVerb(Protocol):
    """Adds one verb to the command."""

    def __call__(self, name: str, command: Command, summary: str) -> argparse.ArgumentParser:
        """The parser of the verb ``name``, for its options."""
        ...


def make_console() -> Console:
    """Standard output: as wide as a terminal is, and wide enough for every table where it is none."""
    console = Console()
    # COLUMNS is how a caller asks for a width of its own.
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def print_json(document: dict[str, Any]) -> None:
    """Print ``document`` on standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_error(error: Error, *, as_json: bool) -> None:
    """Print every diagnostic of ``error``; as a document on standard output too when JSON was asked for."""
    console = Console(stderr=True, highlight=False)
    if as_json:
        faults = [
            {"code": d.code, "what": d.what, "where": d.where, "next_step": d.next_step}
            for d in error.diagnostics()
        ]
        print(json.dumps({"error": type(error).__name__, "diagnostics": faults}, indent=2))
    for diagnostic in error.diagnostics():
        console.print(f"error: {diagnostic}", style="red", markup=False, soft_wrap=True)
