"""``verify``: run every rule on a model's files and gather the facts that planning needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decideploy.artifacts import (
    adapter,
    constants,
    head,
    inventory,
    quantization,
    structure,
    template,
    tensors,
    text,
    values,
)
from decideploy.artifacts.facts import ModelFacts, read_facts
from decideploy.artifacts.files import ModelFiles, NotFetchedError, UnavailableError
from decideploy.artifacts.issue import Issue, Rule
from decideploy.artifacts.manifest import Manifest
from decideploy.counted import counted
from decideploy.errors import ConfigError, VerificationError

SUBJECTS = (
    structure,
    constants,
    tensors,
    values,
    quantization,
    adapter,
    head,
    text,
    template,
    inventory,
)
RULES: tuple[Rule, ...] = tuple(rule for subject in SUBJECTS for rule in subject.RULES.rules)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """All issues of a model, and its facts unless an error makes them unreadable.

    ``not_run`` are codes of rules that need values left on the hub, or a library that is not installed.
    """

    model: Path
    facts: ModelFacts | None
    issues: tuple[Issue, ...]
    rules_run: int
    not_run: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Issue, ...]:
        """Issues that must stop a launch."""
        return tuple(issue for issue in self.issues if issue.severity == "error")

    def raise_for_issues(self) -> None:
        """Raise VerificationError with every error, if there is one."""
        if self.errors:
            raise VerificationError(
                f"{counted(len(self.errors), 'fault')} in {self.model}",
                issues=[issue.to_diagnostic() for issue in self.errors],
                where=str(self.model),
            )

    def known_facts(self) -> ModelFacts:
        """The facts; VerificationError where the files do not tell them."""
        if self.facts is None:
            self.raise_for_issues()
            raise VerificationError(f"{self.model} does not tell its shape", issues=(), where=str(self.model))
        return self.facts


def verify(
    model: Path,
    *,
    adapter: Path | None = None,
    deep: bool = False,
    manifest: Manifest | None = None,
    quiet: bool = True,
) -> Verification:
    """Check the model in the folder ``model`` and its adapter (default ``model/adapter_vllm``).

    ``deep`` also reads every weight; ``manifest`` also hashes every file, with a progress bar unless
    ``quiet``. All faults are collected; ConfigError only when ``model`` is no folder.
    """
    if not model.is_dir():
        raise ConfigError(f"{model} is not a folder", where=str(model), next_step="give the model's folder")
    # The engine is given these paths, and it may run in another folder.
    model, adapter = model.absolute(), adapter.absolute() if adapter else None
    return verify_files(ModelFiles(model, adapter, manifest=manifest, quiet=quiet), deep=deep)


def verify_files(files: ModelFiles, *, deep: bool = False) -> Verification:
    """Run the rules on files that may also lie on the hub."""
    rules = [rule for rule in RULES if deep or not rule.deep]
    issues: list[Issue] = []
    not_run: list[str] = []
    for rule in rules:
        # What a rule cannot read is the fault of another rule's subject, which reports it.
        try:
            issues.extend(rule.issues(files))
        except NotFetchedError:
            not_run.append(rule.code)
        except UnavailableError:
            continue
    facts = _facts(files)
    if facts is None and not any(issue.severity == "error" for issue in issues):
        issues.append(_unread(files))
    return Verification(
        model=files.root,
        facts=facts,
        issues=tuple(issues),
        rules_run=len(rules) - len(not_run),
        not_run=tuple(not_run),
    )


def _unread(files: ModelFiles) -> Issue:
    """No rule found a fault, and yet the files do not say what the engine needs: never pass in silence."""
    return Issue(
        code="facts-unread",
        what="the files do not tell the model's shape, and no rule says why",
        where=str(files.root),
        key="",
        consequence="nothing can be planned or launched from them",
        next_step="report this with the output of `decideploy verify --json`",
    )


def _facts(files: ModelFiles) -> ModelFacts | None:
    try:
        return read_facts(files)
    except UnavailableError:
        return None


def rule_codes() -> Mapping[str, Rule]:
    """Every rule by code."""
    return {rule.code: rule for rule in RULES}
