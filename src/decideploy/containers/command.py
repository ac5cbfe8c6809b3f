"""The command that builds a staged context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from decideploy.containers.context import ImageContext

BUILDERS: Final = ("buildah", "docker")
# OCI's format: in Docker's own, buildah writes a random host name and the container's id into the image.
_REPRODUCIBLE: Final = (
    "--format",
    "oci",
    "--timestamp",
    "0",
    "--no-cache",
    "--layers=false",
    "--identity-label=false",
)


def build_command(
    context: ImageContext, builder: str, *, tag: str = "", hermetic: bool = False
) -> tuple[Sequence[str], Path]:
    """Return argv and working directory that build ``context`` with buildah or with Docker's BuildKit.

    buildah's storage driver and isolation are those of its own environment variables. ``hermetic`` takes the
    network from the whole build and needs root and a base that is already there; it has no effect on Docker,
    whose daemon builds.
    """
    tag = tag or f"decideploy:{context.target}"
    if builder == "docker":
        return ["docker", "buildx", "bake", context.target, "--set", f"*.tags={tag}"], context.folder
    arguments = [word for pair in context.arguments.items() for word in ("--build-arg", "=".join(pair))]
    command = ["buildah", "build", *_REPRODUCIBLE, "--target", context.target]
    command += [*arguments, "--tag", tag, "."]
    return [*(("unshare", "--net") if hermetic else ()), *command], context.folder
