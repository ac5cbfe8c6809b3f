"""Types of arguments; ArgumentTypeError says what would have been right."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Literal

from decideploy.errors import ConfigError
from decideploy.texts import parse_json


def positive(text: str) -> int:
    """An integer above 0."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer above 0")
    return int(text)


def replicas(text: str) -> int | Literal["auto"]:
    """How many replicas."""
    if text == "auto":
        return "auto"
    try:
        return positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor an integer above 0") from error


def count(text: str) -> int:
    """An integer from 0 up."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 0 up")
    return int(text)


def size(text: str) -> int:
    """Bytes, or KiB, MiB or GiB with K, M or G behind the number."""
    number, factor = (text[:-1], _FACTORS[text[-1]]) if text[-1:] in _FACTORS else (text, 1)
    if not (number.isascii() and number.isdigit() and len(number) < 13 and int(number) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give bytes, or a number with K, M or G")
    return int(number) * factor


_FACTORS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def port(text: str) -> int:
    """A TCP port."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give an integer from 1 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def server_url(text: str) -> str:
    """The base URL of a server."""
    # Imported late: most verbs ask no server.
    from decideploy.decide.client import check_url

    try:
        check_url(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error.what}: {error.next_step}") from error
    return text


def share(text: str) -> float:
    """A part of 1, from 0 up."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return value


def prompt_lengths(text: str) -> tuple[int, int]:
    """The median and the longest prompt, in tokens."""
    lengths = several(positive)(text)
    if len(lengths) != 2 or lengths[0] > lengths[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no MEDIAN,LONGEST")
    return lengths[0], lengths[1]


def several(one: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Values separated by commas, and by blanks beside them, which are not part of any."""
    return lambda text: tuple(one(part.strip()) for part in text.split(","))


def kind(text: str) -> str:
    """A kind of decision."""
    if text not in ("noul", "score", "choice"):
        raise argparse.ArgumentTypeError(f"{text!r} is no kind: give noul, score or choice")
    return text


def folds(text: str) -> int:
    """0, or at least 2."""
    asked = count(text)
    if asked == 1:
        raise argparse.ArgumentTypeError("one fold has nothing to fit on: give 0, or 2 and more")
    return asked


def utf8(text: str) -> str:
    """An argument as it is; what is not UTF-8 in it came as surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise argparse.ArgumentTypeError("not UTF-8 text")
    return text


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        document = parse_json(utf8(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return document
