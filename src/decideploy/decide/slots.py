"""Kinds of decisions, the slots that answer them, the slots' labels, and the form of an option's text.

Source: the model's published read-out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["noul", "score", "choice"]

TEMPLATE_VERSION: Final = "bare-v1"
CHOICE_LETTERS: Final = tuple("ABCDEFGHIJKLMNOP")
CANONICAL_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"noul": ("false", "true"), "score": ("0", "1", "2", "3", "4", "5")}
)
# A reading has a letter for each of so many options.
MAX_READ_OPTIONS: Final = len(CHOICE_LETTERS)
SLOT_LABELS: Final = (*CANONICAL_OPTIONS["noul"], *CANONICAL_OPTIONS["score"], *CHOICE_LETTERS)
NUM_SLOTS: Final = len(SLOT_LABELS)
KIND_RANGES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"noul": (0, 2), "score": (2, 8), "choice": (8, 24)}
)
KINDS: Final[tuple[Kind, ...]] = ("noul", "score", "choice")


def fold_lines(text: str) -> str:
    """``text`` on one line: a second line would read as an option without a letter."""
    return " ".join(text.splitlines())
