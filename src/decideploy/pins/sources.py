"""Where pip is told to look: its local find-links folders and its index."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, kw_only=True, slots=True)
class PipSources:
    """Pip's settings that matter to a download; ``index_url`` is empty for the default index."""

    find_links: tuple[Path, ...] = ()
    index_url: str = ""
    certificate: str = ""


def read_pip_sources() -> PipSources:
    """Read what pip is configured with, from its environment variables and configuration files."""
    settings = _pip_config()
    find_links = os.environ.get("PIP_FIND_LINKS", "").split() + _setting(settings, "find-links").split()
    folders = (_local_folder(link) for link in find_links)
    return PipSources(
        find_links=tuple(dict.fromkeys(folder for folder in folders if folder is not None)),
        index_url=os.environ.get("PIP_INDEX_URL") or _setting(settings, "index-url"),
        certificate=os.environ.get("PIP_CERT") or _setting(settings, "cert"),
    )


def _pip_config() -> Mapping[str, str]:
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # An environment made by uv has no pip: then only the environment variables speak.
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: str(ast.literal_eval(value)) for key, _, value in pairs}


def _setting(settings: Mapping[str, str], name: str) -> str:
    for section in (":env:", "download", "install", "global"):
        if value := settings.get(f"{section}.{name}"):
            return value
    return ""


def _local_folder(link: str) -> Path | None:
    parts = urlsplit(link)
    if parts.scheme == "file":
        link = unquote(parts.path)
    elif parts.scheme:
        return None
    folder = Path(link).expanduser()
    return folder if folder.is_dir() else None
