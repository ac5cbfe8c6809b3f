"""Text from outside, read strictly: UTF-8, and JSON as RFC 8259 has it."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from decideploy.errors import ConfigError


def read_text(name: str | Path) -> str:
    """The text of the file ``name``, or of standard input when that is ``-``, with ``\\n`` at line ends.

    ConfigError names file and line that are not UTF-8; OSError as for any file.
    """
    if name == "-":
        # Not sys.stdin.read(): in some locales that turns bytes which are not UTF-8 into surrogates.
        return decoded(sys.stdin.buffer.read(), "standard input")
    return decoded(Path(name).read_bytes(), str(name))


def decoded(content: bytes, where: str) -> str:
    """``content`` of the input ``where`` as text; errors and line ends as in :func:`read_text`."""
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"not UTF-8 text: {error.reason} at byte {error.start}",
            where=f"{where}: line {line}",
            next_step="save it as UTF-8, or name the right file",
        ) from error


def parse_json(text: str | bytes) -> Any:
    """``text`` as JSON whose meaning depends on no parser: no NaN, no Infinity, no key twice in an object.

    ValueError says what it is instead; bytes must be UTF-8.
    """
    try:
        return json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=distinct_keys,
        )
    except RecursionError as error:
        raise ValueError(f"it nests too deep: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a key that is there twice, since readers differ in which they keep."""
    document = dict(pairs)
    if len(document) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {twice[:100]!r} twice")
    return document
