#!/usr/bin/env python3
"""Pack the CUDA build for a bare CUDA host: no package index, torch for CUDA 13 already there.

    scripts/gpu_pack.py [--out .cache/gpu] [--only engine,attention,packages,project]

Writes pieces small enough to be moved one by one, and SHA256SUMS; scripts/gpu_unpack makes an environment
of them. Engine and packages are what build/locks/cuda* name, by hash: the whole patched wheel, and every
locked package that such a host does not bring.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from decideploy.build import build, read_series
from decideploy.pins import cache_folder, fetch, load_lock, load_recipe

ROOT = Path(__file__).resolve().parent.parent
LOCK = "cuda"
PIECE_BYTES = 55 * 1024**2

# The host's torch decides these: what it links, what is compiled against it, and what comes with it.
FROM_HOST = re.compile(
    r"torch|triton|torchvision|torchaudio|torchcodec|nvidia-(?!ml-py|cutlass-dsl).*|cuda-.*|nccl4py|nvtx"
    r"|numpy|numba|llvmlite|opencv-python-headless|pillow|ml-dtypes|sympy|networkx|setuptools|grpcio"
    r"|sentencepiece|tiktoken|hf-xet"
)
# Kernels that this model never calls, and loaders that no plan asks for; half a gigabyte.
UNUSED = re.compile(
    r"tilelang|z3-solver|tokenspeed-.*|pynvvideocodec|instanttensor|fastsafetensors|cuda-tile"
    r"|nvidia-cutlass-dsl-libs-cu12"
)
# FlashAttention 4 is written in CuTe; without these the engine falls back to Triton attention.
ATTENTION = re.compile(r"nvidia-cutlass-dsl(-libs-(base|core|cu13))?|quack-kernels|torch-c-dlpack-ext")


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
    """Every locked package that the host does not bring."""
    install(folder, lambda name: not any(p.fullmatch(name) for p in (FROM_HOST, UNUSED, ATTENTION)))


def fill_attention(folder: Path) -> None:
    """What FlashAttention 4 needs."""
    install(folder, lambda name: ATTENTION.fullmatch(name) is not None)


def install(folder: Path, wanted: Callable[[str], bool]) -> None:
    """Install the locked packages that are wanted, by hash, for the lock's Python and platform."""
    filename = load_lock(LOCK).requirement_file("3.12").filename
    text = (ROOT / "build" / "locks" / filename).read_text("utf-8")
    blocks = re.findall(r"^[a-z0-9].*\n(?:[ ].*\n)*", text, re.MULTILINE)
    kept = [block for block in blocks if wanted(re.split(r"[\[=]", block, maxsplit=1)[0])]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("".join(kept))
        file.flush()
        uv("pip", "install", "--no-deps", "--target", str(folder), *PLATFORM, "-r", file.name)


PLATFORM = (
    *("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_31"),
    *("--only-binary", ":all:", "--require-hashes"),
)


def fill_project(folder: Path) -> None:
    """decideploy as a wheel unpacked into site/, its tests, and in upstream/ the files that patches touch."""
    with tempfile.TemporaryDirectory() as dist:
        uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", dist, str(ROOT))
        (wheel,) = Path(dist).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
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
