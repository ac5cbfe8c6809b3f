"""Verified download: nothing is returned whose size and sha256 were not checked."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins.artifact import Artifact
from decideploy.pins.sources import PipSources, read_pip_sources

Progress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all)."""

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60.0
_OFFLINE = "give a folder that holds the file: --wheelhouse DIR"


def fetch(
    artifact: Artifact,
    into: Path,
    *,
    wheelhouses: Sequence[Path] = (),
    progress: Progress | None = None,
) -> Path:
    """Return ``into / artifact.filename``, its size and sha256 verified.

    Looked for in order: ``into`` itself, ``wheelhouses``, the local folders of pip's find-links, the
    index that pip is configured with. ``progress`` defaults to a bar when stderr is a terminal.

    Raises:
        ConfigError: a wheelhouse is no folder, ``into`` cannot be one, or pip's index is not a package index.
        IntegrityError: the file is nowhere to be had, or what was found is not what ``artifact`` names.
    """
    target = into / artifact.filename
    _check_wheelhouses(wheelhouses)
    _make_folder(into)
    with FileLock(into / f".{artifact.filename}.lock"), _reporting(artifact, progress) as report:
        if _is_right(target, artifact):
            return target
        if _take_from(wheelhouses, artifact, target, report):
            return target
        # Asking pip takes about a second, so it comes after the folders that were given.
        sources = read_pip_sources()
        if not _take_from(sources.find_links, artifact, target, report):
            _download(artifact, target, sources, report)
    return target


def _check_wheelhouses(wheelhouses: Sequence[Path]) -> None:
    missing = [str(folder) for folder in wheelhouses if not folder.is_dir()]
    if missing:
        raise ConfigError(
            f"no such folder: {', '.join(missing)}",
            where="--wheelhouse",
            next_step="name folders that exist, or leave the option out",
        )


def _make_folder(into: Path) -> None:
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"downloads cannot be kept: {error.strerror}",
            where=str(into),
            next_step="set DECIDEPLOY_HOME to a folder that can be written",
        ) from error


def _take_from(folders: Sequence[Path], artifact: Artifact, target: Path, report: Progress) -> bool:
    for folder in folders:
        candidate = folder / artifact.filename
        if candidate.is_file() and candidate.resolve() != target.resolve():
            _store(artifact, _file_chunks(candidate), target, source=str(candidate), progress=report)
            return True
    return False


def _is_right(path: Path, artifact: Artifact) -> bool:
    if not path.is_file() or path.stat().st_size != artifact.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256


def _file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _store(
    artifact: Artifact, chunks: Iterable[bytes], target: Path, *, source: str, progress: Progress
) -> None:
    """Write ``chunks`` beside ``target`` and rename only once size and digest are right."""
    handle, temporary = tempfile.mkstemp(prefix=f".{artifact.filename}.", dir=target.parent)
    try:
        with open(handle, "wb") as file:
            _copy_verified(artifact, chunks, file, source=source, progress=progress)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _copy_verified(
    artifact: Artifact, chunks: Iterable[bytes], file: Any, *, source: str, progress: Progress
) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        size += len(chunk)
        # A server that sends without end must not fill the disk.
        if size > artifact.size_bytes:
            break
        digest.update(chunk)
        file.write(chunk)
        progress(size, artifact.size_bytes)
    if size != artifact.size_bytes:
        found = f"more than {artifact.size_bytes}" if size > artifact.size_bytes else str(size)
        raise _mismatch(artifact, "size", f"{artifact.size_bytes} bytes", f"{found} bytes", source)
    if digest.hexdigest() != artifact.sha256:
        raise _mismatch(artifact, "sha256", artifact.sha256, digest.hexdigest(), source)


def _mismatch(artifact: Artifact, kind: str, expected: str, actual: str, source: str) -> IntegrityError:
    return IntegrityError(
        f"{artifact.filename} has the wrong {kind}",
        where=source,
        expected=expected,
        actual=actual,
        source=source,
        next_step="do not use this file; remove it or take another source, and if the pin is wrong, "
        "correct build/recipes",
    )


def _download(artifact: Artifact, target: Path, sources: PipSources, progress: Progress) -> None:
    # Imported late: with a wheelhouse nothing of the network stack is needed.
    from pypi_simple import (  # noqa: PLC0415
        PYPI_SIMPLE_ENDPOINT,
        NoSuchProjectError,
        PyPISimple,
        UnsupportedContentTypeError,
        UnsupportedRepoVersionError,
    )
    from requests import RequestException  # noqa: PLC0415

    endpoint = sources.index_url or PYPI_SIMPLE_ENDPOINT
    try:
        with PyPISimple(endpoint) as client:
            if sources.certificate:
                client.s.verify = sources.certificate
            url = _find_on_index(artifact, client, endpoint)
            with closing(_open(client, url)) as response:
                chunks = response.iter_content(_CHUNK_BYTES)
                _store(artifact, chunks, target, source=url, progress=progress)
    except NoSuchProjectError as error:
        raise _not_found(artifact, endpoint) from error
    except (UnsupportedContentTypeError, UnsupportedRepoVersionError) as error:
        raise ConfigError(
            f"the server is no package index that can be read: {error}",
            where=endpoint,
            next_step=f"point pip at a package index (PIP_INDEX_URL), or {_OFFLINE}",
        ) from error
    except RequestException as error:
        raise IntegrityError(
            f"{artifact.filename} could not be downloaded: {error}", where=endpoint, next_step=_OFFLINE
        ) from error


def _open(client: Any, url: str) -> Any:
    # Without this a server may compress on the fly, and size and digest would be of other bytes.
    headers = {"Accept-Encoding": "identity"}
    response = client.s.get(url, stream=True, timeout=_TIMEOUT_SECONDS, headers=headers)
    response.raise_for_status()
    return response


def _find_on_index(artifact: Artifact, client: Any, endpoint: str) -> str:
    page = client.get_project_page(artifact.name, timeout=_TIMEOUT_SECONDS)
    for package in page.packages:
        if package.filename != artifact.filename:
            continue
        told = package.digests.get("sha256", artifact.sha256)
        if told != artifact.sha256:
            raise _mismatch(artifact, "sha256", artifact.sha256, told, f"{endpoint} (as listed)")
        return str(package.url)
    raise _not_found(artifact, endpoint)


def _not_found(artifact: Artifact, endpoint: str) -> IntegrityError:
    return IntegrityError(
        f"{artifact.filename} of {artifact.name} {artifact.version} is not on the index",
        where=endpoint,
        source=endpoint,
        next_step=f"point pip at an index that has it (PIP_INDEX_URL), or {_OFFLINE}",
    )


@contextmanager
def _reporting(artifact: Artifact, progress: Progress | None) -> Iterator[Progress]:
    if progress is not None:
        yield progress
    elif sys.stderr.isatty():
        with _bar(artifact) as report:
            yield report
    else:
        yield lambda _done, _total: None


@contextmanager
def _bar(artifact: Artifact) -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import DownloadColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (*Bars.get_default_columns(), DownloadColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(artifact.filename, total=artifact.size_bytes)
        yield lambda done, _total: bars.update(task, completed=done)
