"""Text inside unit files: systemd reads quotes, backslashes, ``%`` and ``$`` in its own way."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_PLAIN: Final = re.compile(r"[\w@+=:,./-]+", re.ASCII)


def word(text: str) -> str:
    """``text`` as one word of a command line or list, whatever it holds."""
    escaped = specifiers(text).replace("$", "$$")
    if _PLAIN.fullmatch(escaped):
        return escaped
    return f'"{"".join(map(_in_quotes, escaped))}"'


def words(texts: Iterable[str]) -> str:
    """Several words."""
    return " ".join(map(word, texts))


def specifiers(text: str) -> str:
    """``text`` where systemd expands ``%`` alone, as in a path."""
    return text.replace("%", "%%")


def assignment(name: str, value: str) -> str:
    """``NAME=value`` as a word of ``Environment=``, which expands ``%`` and no ``$``."""
    text = f"{name}={specifiers(value)}"
    return text if _PLAIN.fullmatch(text) else f'"{"".join(map(_in_quotes, text))}"'


def _in_quotes(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if ord(character) < 32 or ord(character) == 127:
        return f"\\x{ord(character):02x}"
    return character
