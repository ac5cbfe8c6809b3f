"""Rules on the folder as a whole against its manifest, where one is given."""

from __future__ import annotations

from collections.abc import Iterator

from decideploy.artifacts.files import ModelFiles
from decideploy.artifacts.issue import Finding, RuleSet

RULES = RuleSet()

_DOWNLOAD = "download the file again at the revision that the manifest records"


@RULES.rule(
    "manifest-extra",
    consequence="nobody vouched for this file, and the engine or a library may read it",
    next_step="remove the file, or record it with `decideploy lock-model` after review",
)
def manifest_extra(files: ModelFiles) -> Iterator[Finding]:
    """The folder holds no file that the manifest lacks."""
    for name in files.comparison.extra:
        yield Finding(what=f"{name} is not in the manifest", where=name)


@RULES.rule("manifest-missing", consequence="the model is not the one recorded", next_step=_DOWNLOAD)
def manifest_missing(files: ModelFiles) -> Iterator[Finding]:
    """Every file of the manifest is there."""
    for name in files.comparison.missing:
        yield Finding(what=f"{name} is in the manifest and not here", where=name)


@RULES.rule("manifest-mismatched", consequence="the model is not the one recorded", next_step=_DOWNLOAD)
def manifest_mismatched(files: ModelFiles) -> Iterator[Finding]:
    """Every file has the size and sha256 of the manifest."""
    for name, what in files.comparison.mismatched.items():
        yield Finding(what=f"{name} has {what}", where=name)
