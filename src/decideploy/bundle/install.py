"""Install a bundle below a folder of its own, on a host without a network.

A copy of this file lies in every bundle and is run by the host's Python: it uses the standard library alone.
Every part is checked before anything is written. An installation that was interrupted goes on where it was:
files that were unpacked are not unpacked again.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
PARTS = "bundle.tar."
WORK = ".install"
DONE = "bundle.json"
CHUNK_BYTES = 1 << 20

CHECK = """
from decideploy.build import check_installed
found = check_installed()
print("vllm", found.version, "as locked, with", ", ".join(found.patches), "(lean)" if found.lean else "")
"""


def main(argv: Sequence[str]) -> int:
    """Check the bundle and install it; return 0, 1 when a step failed, or 3 when the bundle is refused."""
    options = parse(argv)
    manifest, faults = read_manifest(options.bundle)
    if not faults:
        faults = [
            *part_faults(options.bundle, manifest),
            *host_faults(manifest, options),
            *prefix_faults(options.bundle, options.prefix),
        ]
    if faults:
        for fault in faults:
            print(f"error: {fault}", file=sys.stderr)
        return 3
    if options.check:
        print(f"{len(manifest['parts'])} parts are whole")
        return 0
    return install(options.bundle, manifest, options)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; the first argument is the bundle's folder, which install.sh gives."""
    parser = argparse.ArgumentParser(prog="install.sh", description="Install this bundle of decideploy.")
    parser.add_argument("bundle", type=Path, help=argparse.SUPPRESS)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prefix", type=Path, help="folder to install into; new, or of an interrupted run")
    what.add_argument(
        "--check", action="store_true", help="check every part and this host, and write nothing"
    )
    parser.add_argument(
        "--existing-torch",
        action="store_true",
        help="use torch and what comes with it from this Python, behind the bundle's own packages",
    )
    return parser.parse_args(argv)


def read_manifest(bundle: Path) -> tuple[dict[str, Any], list[str]]:
    """The manifest, or why there is none."""
    try:
        manifest = json.loads((bundle / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError) as error:
        return {}, [f"{MANIFEST} cannot be read: {error}"]
    if not isinstance(manifest, dict) or manifest.get("schema_version") != 1:
        return {}, [f"{MANIFEST} is of no version that this installer knows"]
    return manifest, list(name_faults(manifest))


def name_faults(manifest: dict[str, Any]) -> Iterator[str]:
    """Names that lead out of the folder they belong to."""
    named = [*(part["name"] for part in manifest["parts"]), *(file["path"] for file in manifest["files"])]
    for name in named:
        steps = PurePosixPath(name).parts
        if not steps or steps[0] == "/" or ".." in steps:
            yield f"{MANIFEST} names {name!r}, which is outside of the bundle"


def part_faults(bundle: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the parts, each by name."""
    listed = {part["name"] for part in manifest["parts"]}
    for path in sorted(bundle.glob(f"{PARTS}*")):
        if path.name not in listed:
            yield f"{path.name} is extra: the manifest does not name it"
    for part in manifest["parts"]:
        path = bundle / part["name"]
        if not path.is_file():
            yield f"{part['name']} is missing"
        elif path.stat().st_size != part["size_bytes"]:
            yield f"{part['name']} is damaged: {path.stat().st_size} bytes, not {part['size_bytes']}"
        elif sha256_of(path) != part["sha256"]:
            yield f"{part['name']} is damaged: its sha256 is not {part['sha256']}"


def host_faults(manifest: dict[str, Any], options: argparse.Namespace) -> Iterator[str]:
    """Why this host's Python cannot take the bundle."""
    version = "{}.{}".format(*sys.version_info)
    if version != manifest["python"]:
        yield f"the bundle is for Python {manifest['python']}, this is {version}; name another in PYTHON"
    machine, _, glibc = manifest["platform"].partition("-manylinux_")
    if platform.machine() != machine:
        yield f"the bundle is for {machine}, this is {platform.machine()}"
    needed = tuple(int(number) for number in glibc.split("_"))
    if found := glibc_version():
        if found < needed:
            yield f"the bundle needs glibc {dotted(needed)}, this host has {dotted(found)}"
    else:
        yield f"the bundle needs glibc {dotted(needed)}, and this Python tells of none"
    if options.existing_torch and not has_torch():
        yield f"--existing-torch: {sys.executable} has no torch"
    if manifest["host_torch"] and not options.existing_torch:
        yield "the bundle was made without torch: add --existing-torch"


def glibc_version() -> tuple[int, ...]:
    """The version of the C library, empty when it is another than glibc."""
    name, version = platform.libc_ver()
    return tuple(int(number) for number in version.split(".")[:2]) if name == "glibc" else ()


def dotted(version: Iterable[int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


def has_torch() -> bool:
    """Whether a folder of this Python's packages has torch."""
    return any((Path(folder) / "torch").is_dir() for folder in host_folders())


def host_folders() -> list[str]:
    """The folders of packages that this Python imports from, in its order."""
    named = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = [folder for folder in sys.path if folder in named or Path(folder).name.endswith("-packages")]
    return list(dict.fromkeys([*found, *sorted(named)]))


def prefix_faults(bundle: Path, prefix: Path | None) -> Iterator[str]:
    """Why nothing can be installed below ``prefix``."""
    if prefix is None or not prefix.exists():
        return
    if not prefix.is_dir():
        yield f"{prefix} is no folder"
        return
    marks = [path for path in (prefix / DONE, prefix / WORK / MANIFEST) if path.is_file()]
    if not marks and any(prefix.iterdir()):
        yield f"{prefix} holds something else: name a new folder"
    if any(mark.read_bytes() != (bundle / MANIFEST).read_bytes() for mark in marks):
        yield f"{prefix} holds another bundle: name a new folder"


def install(bundle: Path, manifest: dict[str, Any], options: argparse.Namespace) -> int:
    """Unpack, install and check; return the exit status."""
    prefix: Path = options.prefix.resolve()
    if (prefix / DONE).is_file():
        print(f"{prefix} has this bundle already")
        return 0
    work = prefix / WORK
    work.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(bundle / MANIFEST, work / MANIFEST)
    unpack(bundle, manifest, work)
    python = make_environment(prefix / "env", existing_torch=options.existing_torch)
    wheels = [
        work / member["path"]
        for member in manifest["files"]
        if member["path"].startswith("wheels/") and not (options.existing_torch and member["from_host"])
    ]
    try:
        install_wheels(wheels, python, work)
        subprocess.run([str(python), "-c", CHECK], check=True)
    except subprocess.CalledProcessError as error:
        print(f"error: {Path(error.cmd[0]).name} ended with {error.returncode}; see above", file=sys.stderr)
        return 1
    if (work / "model").is_dir():
        (work / "model").rename(prefix / "model")
    shutil.copyfile(bundle / MANIFEST, prefix / DONE)
    shutil.rmtree(work)
    print(f"installed: {python.with_name('decideploy')} --help")
    return 0


def unpack(bundle: Path, manifest: dict[str, Any], work: Path) -> None:
    """Write every file of the archive that is not there yet; each is checked before it gets its name."""
    members = {member["path"]: member for member in manifest["files"]}
    done = {path for path, member in members.items() if is_whole(work / path, member)}
    print(f"unpacking {len(members) - len(done)} of {len(members)} files", flush=True)
    if len(done) == len(members):
        return
    parts = [bundle / part["name"] for part in manifest["parts"]]
    with tarfile.open(fileobj=Joined(parts), mode="r|", bufsize=CHUNK_BYTES) as archive:
        for info in archive:
            if info.name in members and info.name not in done:
                content = archive.extractfile(info)
                assert content is not None
                store(content, work / info.name, members[info.name])
                done.add(info.name)
    if missing := sorted(members.keys() - done):
        raise SystemExit(f"error: the archive lacks {', '.join(missing)}")


class Joined(io.RawIOBase):
    """The parts as one file to read."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._left = list(parts)
        self._file = self._left.pop(0).open("rb")

    def read(self, size: int = -1) -> bytes:
        """Bytes, across the borders of parts; fewer than ``size`` only at the end."""
        data = bytearray(self._file.read(size))
        while self._left and (size < 0 or len(data) < size):
            self._file.close()
            self._file = self._left.pop(0).open("rb")
            data += self._file.read(size - len(data) if size >= 0 else -1)
        return bytes(data)

    def close(self) -> None:
        """Close the part that is open."""
        self._file.close()
        super().close()


def store(content: Any, target: Path, member: dict[str, Any]) -> None:
    """Write a file under another name, and give it its own once it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".part-")
    digest = hashlib.sha256()
    with open(handle, "wb") as file:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != member["sha256"]:
        os.unlink(temporary)
        raise SystemExit(f"error: {member['path']} is damaged inside the archive")
    os.chmod(temporary, 0o644)
    os.replace(temporary, target)


def is_whole(path: Path, member: dict[str, Any]) -> bool:
    """Whether a file is there and has the manifest's digest."""
    return (
        path.is_file() and path.stat().st_size == member["size_bytes"] and sha256_of(path) == member["sha256"]
    )


def sha256_of(path: Path) -> str:
    """The sha256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_environment(folder: Path, *, existing_torch: bool) -> Path:
    """Make a virtual environment anew and return its python.

    An interrupted run may have left half a package there, which no installer would notice.
    """
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    if existing_torch:
        # By a .pth file: the engine starts its processes without PYTHONPATH, and the system's packages are
        # not this Python's when it is itself a virtual environment.
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        (site / "zz_host.pth").write_text("".join(f"{path}\n" for path in host_folders()), "utf-8")
    return python


def install_wheels(wheels: Sequence[Path], python: Path, work: Path) -> None:
    """Install ``wheels`` as they are, with the uv that lies in the bundle."""
    uv = unpack_uv(work)
    print(f"installing {len(wheels)} wheels", flush=True)
    command = [str(uv), "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--no-config"]
    command += ["--compile-bytecode", "--python", str(python), *map(str, wheels)]
    environment = {**os.environ, "UV_CACHE_DIR": str(work / "cache")}
    subprocess.run(command, check=True, env=environment)


def unpack_uv(work: Path) -> Path:
    """Take the program out of uv's wheel."""
    (wheel,) = (work / "tools").glob("uv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        target = work / "uv"
        target.write_bytes(archive.read(name))
    target.chmod(0o755)
    return target


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
