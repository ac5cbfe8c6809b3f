"""A verification for people and for programs."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

from decideploy import __version__
from decideploy.artifacts.issue import Issue, Rule
from decideploy.artifacts.verification import RULES, Verification
from decideploy.counted import counted

SCHEMA_VERSION = 1
FORMATS = ("table", "json", "sarif", "github")
MAX_PLACES = 5


def to_json(verification: Verification) -> dict[str, Any]:
    """The verification as a document; ``ok`` is false when an error was found."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": str(verification.model),
        "ok": not verification.errors,
        "rules_run": verification.rules_run,
        "not_run": list(verification.not_run),
        "issues": [issue.to_dict() for issue in verification.issues],
        "facts": verification.facts.to_dict() if verification.facts else None,
    }


def print_verification(verification: Verification, console: Console | None = None) -> None:
    """Print weights by component, then each kind of fault once, with its places and its remedy."""
    console = console or Console()
    if verification.facts:
        facts = verification.facts
        experts = facts.quant_algo or facts.dtype
        title = f"{facts.architecture}, {facts.num_layers} layers, experts {experts}"
        console.print(_printable(title), markup=False, highlight=False, soft_wrap=True)
        console.print(_weights(verification))
    for issues in _groups(verification.issues):
        style = "red" if issues[0].severity == "error" else "yellow"
        console.print(_printable(_group(issues)), style=style, markup=False, highlight=False, soft_wrap=True)
    if verification.not_run:
        skipped = ", ".join(verification.not_run)
        console.print(
            f"not run, their values are on the hub or a library is not installed: {skipped}",
            markup=False,
            soft_wrap=True,
        )
    errors = len(verification.errors)
    warnings = len(verification.issues) - errors
    counts = ", ".join(
        (
            counted(verification.rules_run, "rule"),
            counted(errors, "error"),
            counted(warnings, "warning"),
        )
    )
    summary = f"{counts}: {verification.model}"
    console.print(summary, markup=False, soft_wrap=True)


def _groups(issues: Sequence[Issue]) -> list[list[Issue]]:
    grouped: dict[str, list[Issue]] = {}
    for issue in issues:
        grouped.setdefault(issue.code, []).append(issue)
    return sorted(grouped.values(), key=lambda group: group[0].severity != "error")


def _group(issues: Sequence[Issue]) -> str:
    first = issues[0]
    lines = [f"{first.severity}: [{first.code}] ({len(issues)}): {first.consequence}"]
    for issue in issues[:MAX_PLACES]:
        lines.append(f"  {issue.where}: {issue.what}")
    if len(issues) > MAX_PLACES:
        lines.append(f"  … and {len(issues) - MAX_PLACES} more; --json lists all")
    return "\n".join([*lines, f"  next: {first.next_step}"])


def _printable(text: str) -> str:
    # Names in hostile files may hold control characters or halves of surrogate pairs.
    kept = "".join(character if character.isprintable() or character == "\n" else "?" for character in text)
    return kept.encode("utf-8", "replace").decode("utf-8")


def to_sarif(verification: Verification) -> dict[str, Any]:
    """The issues as SARIF 2.1.0, which code hosts show as annotations on files."""
    rules = list(RULES)
    places = {rule.code: number for number, rule in enumerate(rules)}
    driver = {
        "name": "decideploy verify",
        "version": __version__,
        "rules": [_sarif_rule(rule) for rule in rules],
    }
    folder = _folder_in_checkout(verification)
    results = [_sarif_result(issue, places.get(issue.code), folder) for issue in verification.issues]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": first_line(rule)},
        "fullDescription": {"text": rule.consequence},
        "help": {"text": rule.next_step},
        "defaultConfiguration": {"level": rule.severity},
    }


def first_line(rule: Rule) -> str:
    """What a rule demands, as its check's docstring says it."""
    return (rule.check.__doc__ or "").partition("\n")[0]


def _folder_in_checkout(verification: Verification) -> str:
    """The folder from where the check runs, as code hosts name files; "" elsewhere and for the hub."""
    if not verification.model.is_dir():
        return ""
    folder = Path(os.path.relpath(verification.model)).as_posix()
    return "" if folder == "." or folder.startswith("..") else folder


def _sarif_result(issue: Issue, rule_index: int | None, folder: str) -> dict[str, Any]:
    uri = quote(posixpath.join(folder, issue.where), errors="replace")
    location = {
        "physicalLocation": {"artifactLocation": {"uri": uri}},
        "logicalLocations": [{"fullyQualifiedName": _printable(issue.key or issue.where)}],
    }
    # An issue that no rule owns has no entry among the driver's rules.
    index = {} if rule_index is None else {"ruleIndex": rule_index}
    return {
        "ruleId": issue.code,
        **index,
        "level": issue.severity,
        "message": {"text": _printable(f"{issue.what}: {issue.consequence}. Next: {issue.next_step}")},
        "locations": [location],
    }


def github_annotations(verification: Verification) -> list[str]:
    """One workflow command a kind of fault, which GitHub Actions shows as an annotation."""
    lines, folder = [], _folder_in_checkout(verification)
    for issues in _groups(verification.issues):
        first = issues[0]
        message = _escaped(_group(issues))
        place = _property(posixpath.join(folder, first.where))
        properties = f"file={place},title={_property(first.code)}"
        lines.append(f"::{first.severity} {properties}::{message}")
    return lines


def _escaped(text: str) -> str:
    return _printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def write_report(verification: Verification, form: str, console: Console | None = None) -> None:
    """Print a verification on standard output in one of FORMATS."""
    if form == "github":
        for line in github_annotations(verification):
            print(line)
    elif form in ("json", "sarif"):
        print(json.dumps(to_json(verification) if form == "json" else to_sarif(verification), indent=2))
    else:
        print_verification(verification, console)


def _weights(verification: Verification) -> Table:
    facts = verification.known_facts()
    table = Table("component", "bytes")
    for name, size_bytes in facts.weight_bytes.items():
        table.add_row(name, f"{size_bytes:,}")
    return table
