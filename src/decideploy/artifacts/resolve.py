"""Turn what the user names into a folder."""

from __future__ import annotations

import re
from pathlib import Path

from decideploy.errors import ConfigError

_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
_REVISION = re.compile(r"^[0-9a-f]{40}$")


def resolve_model(model: str, *, revision: str | None) -> Path:
    """The folder of ``model``: itself, or a snapshot of a hub id at ``revision``, a full commit id.

    A branch or tag is refused: it names other files tomorrow. Raises ConfigError.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not _HUB_ID.match(model):
        raise ConfigError(
            f"{model} is neither a folder nor a hub id",
            where="MODEL",
            next_step="give the model's folder, or OWNER/NAME with --revision",
        )
    if revision is None or not _REVISION.match(revision):
        raise ConfigError(
            f"{model} needs a revision of 40 hexadecimal digits, given {revision!r}",
            where="--revision",
            next_step="copy the commit id from the model's page: branches and tags move",
        )
    return _snapshot(model, revision)


def _snapshot(model: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(model, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"{model} at {revision} cannot be downloaded: {error}",
            where="MODEL",
            next_step="check the network, the revision, and HF_TOKEN where access to the model is gated",
        ) from error
