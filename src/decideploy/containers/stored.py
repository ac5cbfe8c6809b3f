"""Images in files: an OCI layout, folder or tar archive, or what ``buildah push IMAGE dir:FOLDER`` writes."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from decideploy.errors import ConfigError, IntegrityError

Reader = Callable[[str], BinaryIO]
"""Opens a file of the layout by its path; KeyError or FileNotFoundError if there is none."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """An image that lies in files; digests are 64 hex digits of SHA-256, without a prefix.

    ``manifest_digest`` is what a registry would call the image, ``diff_ids`` those of the layers' archives
    without compression, the lowest layer first.
    """

    manifest_digest: str
    config: Mapping[str, Any]
    layers: Sequence[str]
    diff_ids: Sequence[str]
    open_blob: Reader

    @contextmanager
    def layer(self, index: int) -> Iterator[BinaryIO]:
        """Open the archive of a layer, decompressed.

        Raises:
            IntegrityError: its bytes are not what the image's configuration names.
            ConfigError: it is compressed with zstd.
        """
        digest = self.layers[index]
        with ExitStack() as stack:
            blob = stack.enter_context(self.open_blob(digest))
            plain = stack.enter_context(_decompressed(blob, digest))
            _check(plain, self.diff_ids[index], digest)
            plain.seek(0)
            yield plain


@contextmanager
def open_image(path: Path) -> Iterator[StoredImage]:
    """Open the one image that ``path`` holds.

    Raises:
        ConfigError: it holds none, or more than one.
    """
    with ExitStack() as stack:
        if path.is_dir():
            yield _read_image(path, lambda name: (path / name).open("rb"))
        else:
            yield _read_image(path, _members(path, stack))


def _members(path: Path, stack: ExitStack) -> Reader:
    try:
        archive = stack.enter_context(tarfile.TarFile(path))
    except (FileNotFoundError, tarfile.ReadError) as error:
        raise _no_image(path, str(error)) from error

    def read(name: str) -> BinaryIO:
        file = archive.extractfile(name)
        if file is None:
            raise KeyError(name)
        return cast(BinaryIO, file)

    return read


def _read_image(path: Path, read: Reader) -> StoredImage:
    try:
        manifest, open_blob = _manifest(path, read)
        described = json.loads(manifest)
        with open_blob(_digest(described["config"])) as file:
            config = json.load(file)
        layers = [_digest(layer) for layer in described["layers"]]
        diff_ids = [diff_id.removeprefix("sha256:") for diff_id in config["rootfs"]["diff_ids"]]
    except (KeyError, FileNotFoundError, ValueError, TypeError) as error:
        raise _no_image(path, f"{type(error).__name__}: {error}") from error
    return StoredImage(
        manifest_digest=hashlib.sha256(manifest).hexdigest(),
        config=config,
        layers=layers,
        diff_ids=diff_ids,
        open_blob=open_blob,
    )


def _manifest(path: Path, read: Reader) -> tuple[bytes, Reader]:
    """The manifest's bytes, and what opens a blob by its digest."""
    try:
        index = read("index.json")
    except (KeyError, FileNotFoundError):
        # `dir:` names each blob by its digest alone.
        with read("manifest.json") as file:
            return file.read(), read

    def blob(digest: str) -> BinaryIO:
        return read(f"blobs/sha256/{digest}")

    with index as file:
        manifests = json.load(file)["manifests"]
    if len(manifests) != 1:
        raise _no_image(path, f"it holds {len(manifests)} images")
    with blob(_digest(manifests[0])) as file:
        return file.read(), blob


def _digest(descriptor: Mapping[str, Any]) -> str:
    return str(descriptor["digest"]).removeprefix("sha256:")


def _decompressed(blob: BinaryIO, digest: str) -> BinaryIO:
    magic = blob.read(len(_ZSTD))
    blob.seek(0)
    if magic == _ZSTD:
        raise ConfigError(
            "the layer is compressed with zstd, which is not read",
            where=f"sha256:{digest}",
            next_step="copy the image with gzip or no compression: skopeo copy --dest-compress-format gzip",
        )
    return cast(BinaryIO, gzip.open(blob)) if magic.startswith(_GZIP) else blob


def _check(plain: BinaryIO, diff_id: str, digest: str) -> None:
    found = hashlib.sha256()
    while chunk := plain.read(CHUNK_BYTES):
        found.update(chunk)
    if found.hexdigest() != diff_id:
        raise IntegrityError(
            "the layer's bytes are not what the image names",
            where=f"sha256:{digest}",
            expected=diff_id,
            actual=found.hexdigest(),
            next_step="copy the image again: this copy is damaged",
        )


def _no_image(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"no image that can be read: {why}",
        where=str(path),
        next_step="name an OCI layout (folder or .tar), or what `buildah push IMAGE dir:FOLDER` wrote",
    )
