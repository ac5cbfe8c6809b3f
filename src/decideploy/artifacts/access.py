"""Whether a model can be had, before anything of it is fetched: access, room on the disk, and the clock."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from decideploy.artifacts.hub import HubModel, hub_errors, split_hub_id
from decideploy.errors import ConfigError

# Signed addresses of a storage are good for minutes, and certificates for days.
_SKEW_S: Final = 300.0


def check_access(model: str, *, revision: str | None, now: Callable[[], float] = time.time) -> str:
    """Where the files of ``model`` are, or that they can be fetched; ``now`` gives seconds since 1970.

    A folder, and a snapshot that is here, ask nobody. Raises ConfigError: the id is not pinned, the hub does
    not give the files (gated, offline, unknown), the disk is too small, or this machine's clock is wrong.
    """
    if (folder := Path(model).expanduser()).is_dir():
        return f"{folder} is here"
    repo, commit = split_hub_id(model, revision)
    if (snapshot := _snapshot_here(repo, commit)) is not None:
        return f"{snapshot} is here"
    hub = HubModel(repo=repo, revision=commit)
    _check_clock(repo, commit, now)
    listing = hub.listing()
    # What a page lists everybody may read; a gated model's files are another matter.
    hub.read(next(iter(sorted(listing))), 0, 1)
    needed_bytes = sum(file.size_bytes for file in listing.values())
    _check_disk(needed_bytes)
    return f"{repo} can be fetched: {needed_bytes:,} bytes"


def _snapshot_here(repo: str, commit: str) -> Path | None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(repo, revision=commit, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _check_disk(needed_bytes: int) -> None:
    from huggingface_hub import constants  # noqa: PLC0415

    cache = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"the model has {needed_bytes:,} bytes, the disk has room for {free_bytes:,}",
            where=str(cache),
            next_step="make room, or set HF_HOME to a folder on a larger disk",
        )


def _check_clock(repo: str, commit: str, now: Callable[[], float]) -> None:
    from huggingface_hub import constants  # noqa: PLC0415
    from huggingface_hub.utils._http import get_session  # noqa: PLC0415

    with hub_errors(repo, commit):
        told = get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    date = told.headers.get("Date")
    ahead_s = now() - parsedate_to_datetime(date).timestamp() if date else 0.0
    if abs(ahead_s) > _SKEW_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        raise ConfigError(
            f"this machine's clock is {abs(ahead_s):.0f} s {side} the hub's",
            where=f"Date of {constants.ENDPOINT}",
            next_step="set the clock, most often `timedatectl set-ntp true`",
        )
