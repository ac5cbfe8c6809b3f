"""Turn what the user names into a folder."""

from __future__ import annotations

from pathlib import Path

from decideploy.artifacts.hub import split_hub_id
from decideploy.errors import ConfigError


def resolve_model(model: str, *, revision: str | None) -> Path:
    """The folder of ``model``: itself, or a snapshot of a hub id at ``revision``, a full commit id.

    A branch or tag is refused: it names other files tomorrow. Raises ConfigError.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    return _snapshot(*split_hub_id(model, revision))


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
