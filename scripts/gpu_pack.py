#!/usr/bin/env python3
"""Pack the CUDA build for a bare CUDA host: no package index, torch for CUDA 13 already there.

    scripts/gpu_pack.py [--out .cache/gpu] [--only engine,attention,packages,project]

Writes pieces small enough to be moved one by one, and SHA256SUMS; scripts/gpu_unpack makes an environment
of them. Engine and packages are what build/locks/cuda* name, by hash: the whole patched wheel, and what a
lean bundle for a host with torch holds. A bundle is one archive; here each kind of piece is packed by itself,
so that a change of the project moves one megabyte and not three hundred.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from decideploy.build import build, read_series
from decideploy.build.project import project_wheel
from decideploy.build.wheelhouse import select_requirements
from decideploy.bundle.contents import left_out, matching
from decideploy.pins import cache_folder, check_requirements, fetch, load_lock, load_recipe

ROOT = Path(__file__).resolve().parent.parent
LOCK = "cuda"
PYTHON = "3.12"
PIECE_BYTES = 55 * 1024**2

# FlashAttention 4 is written in CuTe; without these the engine falls back to Triton attention.
ATTENTION = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-*", "quack-kernels", "torch-c-dlpack-ext")


def main() -> int:
    """Pack what was asked for."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        pack(name, PARTS[name], options.out)
    write_sums(options.out)
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "gpu", help="folder for the pieces")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(PARTS),
        metavar="PARTS",
        help=f"parts to pack again, of {', '.join(PARTS)}",
    )
    return parser.parse_args()


def pack(name: str, fill: Callable[[Path], None], out: Path) -> None:
    """Fill a folder, and write it as NAME.tar.xz.00, .01, …"""
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=out) as folder:
        fill(Path(folder))
        for old in out.glob(f"{name}.tar.xz.*"):
            old.unlink()
        tar = ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]
        with subprocess.Popen([*tar, "-C", folder, "-c", "."], stdout=subprocess.PIPE) as archive:
            write = ["split", "-d", "-b", str(PIECE_BYTES), "-", str(out / f"{name}.tar.xz.")]
            with subprocess.Popen(["xz", "-T2", "-6"], stdin=archive.stdout, stdout=subprocess.PIPE) as xz:
                subprocess.run(write, stdin=xz.stdout, check=True)
        if archive.returncode or xz.returncode:
            raise SystemExit(f"packing {name} failed")


def fill_engine(folder: Path) -> None:
    """The whole patched wheel, as an installer would unpack it."""
    result = build(LOCK, ROOT / ".cache" / "dist")
    with zipfile.ZipFile(result.wheel) as wheel:
        wheel.extractall(folder)


def fill_packages(folder: Path) -> None:
    """Every locked package that the host does not bring and this model may call."""
    install(folder, needed() - matching(needed(), ATTENTION))


def fill_attention(folder: Path) -> None:
    """What FlashAttention 4 needs."""
    install(folder, matching(needed(), ATTENTION))


def needed() -> frozenset[str]:
    """Names of the locked packages that a lean bundle for a host with torch holds."""
    recipe, lock = load_recipe(LOCK), load_lock(LOCK)
    leave = left_out(recipe, lock, python=PYTHON, lean=True, host_torch=True, root=ROOT)
    return frozenset(check_requirements(requirements()).keys() - leave)


def requirements() -> Path:
    """The locked requirement file."""
    return ROOT / "build" / "locks" / load_lock(LOCK).requirement_file(PYTHON).filename


def install(folder: Path, names: Collection[str]) -> None:
    """Install the locked packages of these names, by hash, for the lock's Python and platform."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(select_requirements(requirements().read_text("utf-8"), names))
        file.flush()
        uv("pip", "install", "--no-deps", "--target", str(folder), *PLATFORM, "-r", file.name)


PLATFORM = (
    *("--python-version", PYTHON, "--python-platform", "x86_64-manylinux_2_31"),
    *("--only-binary", ":all:", "--require-hashes"),
)


def fill_project(folder: Path) -> None:
    """decideploy as a wheel unpacked into site/, its tests, and in upstream/ the files that patches touch."""
    with tempfile.TemporaryDirectory() as dist, zipfile.ZipFile(project_wheel(ROOT, Path(dist))) as wheel:
        wheel.extractall(folder / "site")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    with zipfile.ZipFile(fetch(load_recipe(LOCK).wheel_artifact, cache_folder())) as upstream:
        present = set(upstream.namelist())
        changed = {path for patch in read_series(ROOT) for path in patch.paths}
        upstream.extractall(folder / "upstream", sorted(changed & present))


def uv(*arguments: str) -> None:
    """Run the uv beside this Python."""
    program = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    subprocess.run([program, *arguments, "--quiet"], check=True)


def write_sums(out: Path) -> None:
    """SHA256SUMS of every piece, as sha256sum reads it."""
    pieces: Sequence[Path] = sorted(out.glob("*.tar.xz.*"))
    lines = [f"{hashlib.sha256(piece.read_bytes()).hexdigest()}  {piece.name}\n" for piece in pieces]
    (out / "SHA256SUMS").write_text("".join(lines), "utf-8")
    for piece in pieces:
        print(f"{piece.stat().st_size / 1024**2:6.1f} MiB  {piece}")


PARTS: dict[str, Callable[[Path], None]] = {
    "engine": fill_engine,
    "attention": fill_attention,
    "packages": fill_packages,
    "project": fill_project,
}

if __name__ == "__main__":
    sys.exit(main())
