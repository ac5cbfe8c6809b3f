"""Lay the files where they belong: all of them or none."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from decideploy.artifacts.hub import split_hub_id
from decideploy.deploy.units.service import STATE_FOLDER, Service, UnitFile
from decideploy.deploy.units.systemd import HIDDEN
from decideploy.errors import ConfigError, Error
from decideploy.gateway.keys import read_keys

Outcome = Literal["written", "replaced", "unchanged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenFile:
    """What became of one file."""

    path: Path
    outcome: Outcome


def write_files(files: Sequence[UnitFile]) -> tuple[WrittenFile, ...]:
    """Write every file beside its place, then put all in place.

    ConfigError when one cannot be written; then nothing has changed but folders that were made.
    """
    with ExitStack() as stack:
        waiting = [(file, _partial(file, stack)) for file in files if _outcome(file) != "unchanged"]
        written = tuple(WrittenFile(path=file.path, outcome=_outcome(file)) for file in files)
        for file, partial in waiting:
            partial.replace(file.path)
    return written


def _outcome(file: UnitFile) -> Outcome:
    try:
        before = file.path.read_bytes()
    except OSError:
        return "written"
    return "unchanged" if before == file.text.encode() else "replaced"


def _partial(file: UnitFile, stack: ExitStack) -> Path:
    """The content beside its place, gone at the end if it was not put there."""
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.path.parent, prefix=f".{file.path.name}.")
        partial = Path(name)
        stack.callback(partial.unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(file.text.encode())
            os.fchmod(descriptor, file.mode)
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror}",
            where=str(file.path),
            next_step="install as root, or with --user; --out DIR writes the files elsewhere, for review",
        ) from error
    return partial


def service_faults(service: Service, *, model: str | None, revision: str | None) -> Iterator[Error]:
    """Everything that would stop ``service`` wherever it is installed; :func:`hidden_faults` has the rest."""
    yield from _model_faults(service, model, revision)
    yield from _secret_faults(service)
    yield from _combination_faults(service)
    if _is_of_the_system(service) and service.access_log:
        yield from _log_faults(service.access_log)


def _model_faults(service: Service, model: str | None, revision: str | None) -> Iterator[Error]:
    if service.fetches and model is not None:
        try:
            split_hub_id(model, revision)
        except ConfigError as error:
            yield error
    for target, source in service.mounts.items():
        if not source.exists():
            yield ConfigError(
                "does not exist",
                where=f"{Path(target).name}: {source}",
                next_step="name a file or folder of this machine",
            )


def _secret_faults(service: Service) -> Iterator[Error]:
    if service.api_key_file:
        try:
            read_keys(service.api_key_file, {})
        except ConfigError as error:
            yield error
    token = service.hub_token_file
    if token and not token.is_file():
        yield ConfigError(
            "there is no such file",
            where=f"--hub-token-file {token}",
            next_step="write the hub's token into it",
        )


def _combination_faults(service: Service) -> Iterator[Error]:
    if service.kind == "compose" and service.user:
        yield ConfigError(
            "a Compose file belongs to no service manager", where="--user", next_step="leave --user out"
        )
    if service.kind == "systemd" and service.image:
        yield ConfigError(
            "a unit without containers has no image", where="--image", next_step="use --quadlet or --compose"
        )
    if service.replicas and service.kind != "systemd":
        yield ConfigError(
            "the images have no HAProxy, which replicas stand behind",
            where="--replicas",
            next_step="use --systemd, or one container a GPU behind a HAProxy of your own (docs/replicas.md)",
        )
    for path in service.mounts.values() if service.kind == "quadlet" else ():
        if ":" in str(path):
            yield ConfigError(
                "Podman reads a colon as the end of a path", where=str(path), next_step="move or link it"
            )
    if service.hub_token_file and not service.fetches:
        yield ConfigError(
            "the model is here: nothing is fetched",
            where="--hub-token-file",
            next_step="leave the option out",
        )


def _is_of_the_system(service: Service) -> bool:
    return service.kind == "systemd" and not service.user


def hidden_faults(service: Service) -> Iterator[ConfigError]:
    """Paths of this machine that the unit's sandbox hides: another machine may have them elsewhere."""
    if not _is_of_the_system(service):
        return
    paths = {
        "the Python that runs this": Path(sys.prefix),
        "its base": Path(sys.base_prefix),
        **service.mounts,
    }
    for name, path in paths.items():
        if any(path.resolve().is_relative_to(folder) for folder in HIDDEN):
            yield ConfigError(
                f"a system service does not see {path}",
                where=name,
                next_step=f"keep it outside {', '.join(map(str, HIDDEN))}, such as below /opt or /srv; "
                "or install with --user",
            )


def _log_faults(access_log: Path) -> Iterator[Error]:
    if not access_log.is_relative_to(STATE_FOLDER):
        yield ConfigError(
            f"a system service writes below {STATE_FOLDER} alone",
            where=f"--access-log {access_log}",
            next_step="name a file there, or leave the option out: the journal keeps the log",
        )
