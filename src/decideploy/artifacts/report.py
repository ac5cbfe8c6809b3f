"""A verification for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from decideploy.artifacts.verification import Verification

SCHEMA_VERSION = 1


def to_json(verification: Verification) -> dict[str, Any]:
    """The verification as a document; ``ok`` is false when an error was found."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": str(verification.model),
        "ok": not verification.errors,
        "rules_run": verification.rules_run,
        "issues": [issue.to_dict() for issue in verification.issues],
        "facts": verification.facts.to_dict() if verification.facts else None,
    }


def print_verification(verification: Verification, console: Console | None = None) -> None:
    """Print weights by component, then every issue with its consequence and next step."""
    console = console or Console()
    if verification.facts:
        console.print(_weights(verification))
    for issue in verification.issues:
        style = "red" if issue.severity == "error" else "yellow"
        console.print(f"{issue.severity}: {issue.to_diagnostic()}", style=style, markup=False, soft_wrap=True)
    errors = len(verification.errors)
    warnings = len(verification.issues) - errors
    summary = f"{verification.rules_run} rules, {errors} errors, {warnings} warnings: {verification.model}"
    console.print(summary, markup=False, soft_wrap=True)


def _weights(verification: Verification) -> Table:
    facts = verification.known_facts()
    experts = facts.quant_algo or facts.dtype
    table = Table(
        "component", "bytes", title=f"{facts.architecture}, {facts.num_layers} layers, experts {experts}"
    )
    for name, size_bytes in facts.weight_bytes.items():
        table.add_row(name, f"{size_bytes:,}")
    return table
