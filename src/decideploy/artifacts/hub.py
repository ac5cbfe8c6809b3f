"""Verify a model on the hub without its weights: metadata, headers and small tensors by ranged reads.

The hub's files get stand-ins in a temporary folder: small files whole, safetensors as sparse files that hold
the header and whatever else was read. Rules run on them as on a local model, and a rule that needs values
which stayed on the hub is reported as not run.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from decideploy.artifacts.files import ModelFiles, NotFetchedError
from decideploy.artifacts.manifest import FileRecord, Manifest
from decideploy.artifacts.safetensors_file import (
    MAX_HEADER_BYTES,
    MalformedFileError,
    TensorInfo,
    read_header,
)
from decideploy.artifacts.verification import Verification, verify_files
from decideploy.errors import ConfigError

MAX_MOVED_BYTES = 20_000_000
# Documents beyond this stay on the hub: in practice tokenizer.json, 33 MB in the published model.
_MAX_DOCUMENT_BYTES = 8_000_000
_DOCUMENTS = (".json", ".jinja")
_FIRST_READ_BYTES = 1 << 16
# One scale is 4 bytes; exporters that sort tensors by dtype store all of a shard's scales in one run.
_SMALL_TENSOR_BYTES = 64
_GAP_BYTES = 1 << 14
_MAX_RUNS = 32

_DOWNLOAD_FIRST = "try again, or add --deep, which downloads the model first"

_PINNED = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^@]*))?$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    """One file as the hub lists it; ``sha256`` is known for files in large-file storage only."""

    size_bytes: int
    sha256: str | None


@dataclass(kw_only=True)
class HubModel:
    """A repository at one commit, and how many bytes were read of it."""

    repo: str
    revision: str
    moved_bytes: int = field(default=0, init=False)

    def listing(self) -> dict[str, HubFile]:
        """Every file of the commit; ConfigError when the hub does not answer or names a path outside."""
        from huggingface_hub import HfApi  # noqa: PLC0415

        with hub_errors(self.repo, self.revision):
            info = HfApi().model_info(
                self.repo, revision=self.revision, files_metadata=True, timeout=_timeout_s()
            )
        if info.sha != self.revision:
            raise ConfigError(
                f"{self.repo} answered with commit {info.sha}", where="--revision", next_step="pin the commit"
            )
        files = {
            one.rfilename: HubFile(size_bytes=one.size or 0, sha256=one.lfs.sha256 if one.lfs else None)
            for one in info.siblings or ()
        }
        for name in files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ConfigError(f"the repository holds {name!r}", where=self.repo)
        return files

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes ``[begin, end)`` of a file; ConfigError from a server that ignores ranges."""
        from huggingface_hub import hf_hub_url  # noqa: PLC0415
        from huggingface_hub.utils._headers import build_hf_headers  # noqa: PLC0415
        from huggingface_hub.utils._http import get_session, hf_raise_for_status  # noqa: PLC0415

        if end <= begin:
            return b""
        url = hf_hub_url(self.repo, name, revision=self.revision)
        headers = build_hf_headers() | {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        with (
            hub_errors(self.repo, self.revision),
            get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=_timeout_s()
            ) as response,
        ):
            hf_raise_for_status(response)
            if begin and response.status_code != 206:
                raise ConfigError(
                    f"the server of {name} ignores ranges", where=self.repo, next_step=_DOWNLOAD_FIRST
                )
            content = _take(response.iter_bytes(), end - begin)
        self.moved_bytes += len(content)
        if len(content) != end - begin:
            raise ConfigError(
                f"{name} ended after {len(content)} of {end - begin} bytes",
                where=self.repo,
                next_step=_DOWNLOAD_FIRST,
            )
        return content


def _timeout_s() -> float:
    # The client's own session waits for ever.
    from huggingface_hub import constants  # noqa: PLC0415

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def _take(chunks: Iterator[bytes], count: int) -> bytes:
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) >= count:
            break
    return bytes(content[:count])


@contextmanager
def hub_errors(repo: str, revision: str) -> Iterator[None]:
    """Turn the client's errors into ConfigError with the remedy."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415
    from huggingface_hub.utils._http import get_session  # noqa: PLC0415

    # The hub client changed its HTTP library between major releases; its session tells which one it is.
    http = import_module(type(get_session()).__module__.partition(".")[0])
    try:
        yield
    except (HfHubHTTPError, http.HTTPError, OSError) as error:
        reason, next_step = _reason(error, http.TimeoutException)
        raise ConfigError(
            f"{repo} at {revision} cannot be read: {reason}: {error}", where="MODEL", next_step=next_step
        ) from error


def _reason(error: Exception, timeout: type[Exception]) -> tuple[str, str]:
    """What kept the hub's files away, and the remedy; the first that fits."""
    from huggingface_hub import errors  # noqa: PLC0415

    reasons: tuple[tuple[type[Exception], str, str], ...] = (
        (
            errors.GatedRepoError,
            "access to the model is gated",
            "accept the model's terms on its page, then set HF_TOKEN to a token of that account",
        ),
        (
            errors.RevisionNotFoundError,
            "the commit does not exist",
            "copy the commit id from the model's page",
        ),
        (
            errors.RepositoryNotFoundError,
            "no such model, or a private one",
            "check the name, and HF_TOKEN where the model is private",
        ),
        (errors.EntryNotFoundError, "a listed file is gone", "try again; report it to the model's owner"),
        (
            errors.OfflineModeIsEnabled,
            "HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE, or give the folder of a downloaded model",
        ),
        (timeout, "the hub did not answer in time", "try again, or raise HF_HUB_DOWNLOAD_TIMEOUT"),
    )
    network = ("the hub cannot be reached", "check the network, the proxy and HF_ENDPOINT, then try again")
    return next(((why, step) for kind, why, step in reasons if isinstance(error, kind)), network)


class HubFiles(ModelFiles):
    """Stand-ins of a hub model; ``values`` are the tensors, by file, whose bytes were read."""

    def __init__(self, root: Path, *, values: Mapping[str, frozenset[str]], unread: frozenset[str]) -> None:
        super().__init__(root)
        self._values = values
        self._unread = frozenset(root / name for name in unread)

    def json_fault(self, path: Path) -> str:
        """As in ModelFiles; a document that stayed on the hub has no known fault."""
        return "" if path in self._unread else super().json_fault(path)

    def json(self, name: str | Path) -> Mapping[str, object]:
        """As in ModelFiles; NotFetchedError for a document that stayed on the hub."""
        if self.root / name in self._unread:
            raise NotFetchedError(str(name))
        return super().json(name)

    def header(self, path: Path) -> Mapping[str, TensorInfo]:
        """As in ModelFiles, with each tensor told whether its values are here."""
        read = self._values.get(self.label(path), frozenset())
        return {
            name: tensor if name in read else replace(tensor, fetched=False)
            for name, tensor in super().header(path).items()
        }


def split_hub_id(model: str, revision: str | None) -> tuple[str, str]:
    """``OWNER/NAME`` or ``OWNER/NAME@COMMIT`` with its pinned commit; ConfigError when it is not pinned."""
    match = _PINNED.match(model)
    if not match:
        raise ConfigError(
            f"{model} is neither a folder nor a hub id",
            where="MODEL",
            next_step="give the model's folder, or OWNER/NAME with --revision",
        )
    commit = match["revision"] or revision
    if commit is None or not _COMMIT.match(commit):
        raise ConfigError(
            f"{match['repo']} needs a revision of 40 hexadecimal digits, given {commit!r}",
            where="--revision",
            next_step="copy the commit id from the model's page: branches and tags move",
        )
    return match["repo"], commit


def verify_hub(model: HubModel) -> Verification:
    """Check a model on the hub, moving at most 20 MB."""
    with TemporaryDirectory() as folder:
        root = Path(folder) / model.repo.replace("/", "--")
        verification = verify_files(_stand_ins(model, root))
    facts = replace(verification.facts, path=Path(model.repo)) if verification.facts else None
    return replace(verification, model=Path(model.repo), facts=facts)


def _stand_ins(model: HubModel, root: Path) -> HubFiles:
    listing = model.listing()
    values: dict[str, frozenset[str]] = {}
    unread: set[str] = set()
    # Small files first: the budget then never fails for want of config.json.
    for name, file in sorted(listing.items(), key=lambda item: item[1].size_bytes):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stand_in:
            stand_in.truncate(file.size_bytes)
        if path.suffix == ".safetensors":
            values[name] = _read_tensors(model, name, path, file.size_bytes)
        elif path.suffix in _DOCUMENTS and _affordable(model, file.size_bytes):
            _write(path, 0, model.read(name, 0, file.size_bytes))
        else:
            unread.add(name)
    return HubFiles(root, values=values, unread=frozenset(unread))


def _affordable(model: HubModel, count: int) -> bool:
    return count <= _MAX_DOCUMENT_BYTES and model.moved_bytes + count <= MAX_MOVED_BYTES


def _read_tensors(model: HubModel, name: str, path: Path, size_bytes: int) -> frozenset[str]:
    """Fetch a header and the small tensors; returns the tensors whose values are here."""
    first = min(size_bytes, _FIRST_READ_BYTES)
    _write(path, 0, head := model.read(name, 0, first))
    header_end = 8 + struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
    if first < header_end <= min(size_bytes, 8 + MAX_HEADER_BYTES):
        if model.moved_bytes + header_end > MAX_MOVED_BYTES:
            raise ConfigError(
                f"the headers of {model.repo} take more than {MAX_MOVED_BYTES} bytes",
                where=name,
                next_step="add --deep, which downloads the model first",
            )
        _write(path, first, model.read(name, first, header_end))
    try:
        tensors = read_header(path)
    except MalformedFileError:
        return frozenset()
    small = [tensor for tensor in tensors.values() if tensor.size_bytes <= _SMALL_TENSOR_BYTES]
    # A file that fits in one read is read whole.
    wanted = list(tensors.values()) if size_bytes <= 1_000_000 else small
    runs = _runs(wanted)
    moved = sum(end - begin for begin, end in runs)
    if len(runs) > _MAX_RUNS or model.moved_bytes + moved > MAX_MOVED_BYTES:
        return frozenset()
    for begin, end in runs:
        _write(path, begin, model.read(name, begin, end))
    return frozenset(tensor.name for tensor in wanted)


def _runs(tensors: Sequence[TensorInfo]) -> list[tuple[int, int]]:
    """Byte spans that cover the tensors, joined where little lies between."""
    runs: list[tuple[int, int]] = []
    for begin, end in sorted((tensor.begin, tensor.end) for tensor in tensors):
        if runs and begin - runs[-1][1] <= _GAP_BYTES:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((begin, end))
    return runs


def _write(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def lock_hub(model: HubModel) -> Manifest:
    """Record a hub model without its weights: the hub tells large files' sha256, small files are read."""
    files = {}
    for name, file in sorted(model.listing().items()):
        if not any(part.startswith(".") for part in PurePosixPath(name).parts):
            content_sha256 = file.sha256 or hashlib.sha256(model.read(name, 0, file.size_bytes)).hexdigest()
            files[name] = FileRecord(size_bytes=file.size_bytes, sha256=content_sha256)
    return Manifest(model=model.repo, revision=model.revision, files=files)
