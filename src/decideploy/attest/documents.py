"""Compare a JSON document with the one that it should be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decideploy.errors import Diagnostic

_SHOWN = 5


def document_faults(path: Path, expected: Any, *, next_step: str) -> Iterator[Diagnostic]:
    """Yield one fault with the keys at which the document in ``path`` differs; nothing without a file."""
    if not path.is_file():
        return
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        yield Diagnostic(what=f"{path.name} is no JSON: {error}", where=str(path), next_step=next_step)
        return
    keys = list(differences(expected, found))
    if keys:
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        yield Diagnostic(
            what=f"{path.name} differs from what the lock leads to, at {', '.join(keys[:_SHOWN])}{more}",
            where=str(path),
            next_step=next_step,
        )


def differences(expected: Any, found: Any, key: str = "") -> Iterator[str]:
    """Yield the keys, such as ``subject[0].name``, at which two JSON values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted(expected.keys() | found.keys()):
            inner = f"{key}.{name}" if key else name
            if name in expected and name in found:
                yield from differences(expected[name], found[name], inner)
            else:
                yield f"{inner} ({'missing' if name in expected else 'extra'})"
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{key}[{index}]")
    elif expected != found:
        yield key or "its top level"
