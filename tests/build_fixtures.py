"""Small wheels, series and project trees, made in memory."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LAYER = "".join(f"line {number}\n" for number in range(1, 31))
FILENAME = "demo_cpu-1.0-cp38-abi3-manylinux_2_28_x86_64.whl"
INFO = "demo_cpu-1.0.dist-info"
VERSION_FILE = (
    "version: str\n"
    "__version__ = version = '1.0'\n"
    "__version_tuple__ = version_tuple = (1, 0)\n\n"
    "__commit_id__ = commit_id = 'gabc'\n"
)
METADATA = (
    "Metadata-Version: 2.1\nName: demo-cpu\nVersion: 1.0\n"
    "Requires-Dist: numpy\nRequires-Dist: torchvision; platform_machine != 's390x'\n\nVersion: prose\n"
)
HEADER = "Description: say less\n why\nAuthor: A\nForwarded: no\nLast-Update: 2026-01-02\n---\n"
CHANGE = (
    "@@ -9,7 +9,7 @@\n line 9\n line 10\n line 11\n-line 12\n+line twelve\n line 13\n line 14\n line 15\n"
)


def patch_text(path: str = "vllm/layer.py", hunks: str = CHANGE, header: str = HEADER) -> str:
    return f"{header}diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n{hunks}"


def record_line(name: str, content: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={value},{len(content)}\n"


def make_wheel(extra: Mapping[str, str] | None = None) -> bytes:
    files = {
        "vllm/layer.py": LAYER,
        "vllm/_version.py": VERSION_FILE,
        "vllm/__init__.py": "",
        **(extra or {}),
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n\n",
    }
    contents = {name: text.encode() for name, text in files.items()}
    record = "".join(record_line(name, content) for name, content in contents.items())
    contents[f"{INFO}/RECORD"] = f"{record}{INFO}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            info = zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6))
            info.external_attr, info.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def write_series(root: Path, patches: Mapping[str, str], series: str | None = None) -> Path:
    folder = root / "patches"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in patches.items():
        (folder / name).write_text(text)
    (folder / "series").write_text(series if series is not None else "".join(f"{name}\n" for name in patches))
    return root


@dataclass(frozen=True)
class Project:
    root: Path
    wheelhouse: Path
    wheel: bytes

    @property
    def lock_path(self) -> Path:
        return self.root / "build" / "locks" / "demo.json"

    @property
    def recipe_path(self) -> Path:
        return self.root / "build" / "recipes" / "demo.toml"

    def edit_lock(self, **changes: object) -> None:
        """Set keys such as ``wheel__sha256``; None removes the key."""
        document = json.loads(self.lock_path.read_text())
        for path, value in changes.items():
            *parents, last = path.split("__")
            target = document
            for key in parents:
                target = target[key]
            if value is None:
                del target[last]
            else:
                target[last] = value
        self.lock_path.write_text(json.dumps(document))


def make_project(tmp_path: Path, patches: Mapping[str, str] | None = None) -> Project:
    """A tree with one recipe, its series and a lock that agrees with both."""
    from decideploy.build import read_series, repack, wheel_filename
    from decideploy.pins import load_recipe
    from decideploy.pins.lock import (
        Lock,
        OutputWheel,
        RecipeDigest,
        RequirementFile,
        digest_series,
        file_sha256,
    )

    wheel = make_wheel()
    root = write_series(tmp_path / "project", patches or {"0001-say-less.patch": patch_text()})
    (root / "build" / "recipes").mkdir(parents=True)
    (root / "build" / "locks").mkdir()
    recipe_file = root / "build" / "recipes" / "demo.toml"
    recipe_file.write_text(recipe_text(wheel))
    requirements = root / "build" / "locks" / "demo-py311.txt"
    requirements.write_text(f"numpy==2.0 \\\n    --hash=sha256:{'0' * 64}\n")
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    (wheelhouse / FILENAME).write_bytes(wheel)
    recipe = load_recipe("demo", root=root)
    target = tmp_path / wheel_filename(recipe)
    packed = repack(wheelhouse / FILENAME, target, recipe=recipe, series=read_series(root))
    target.unlink()
    lock = Lock(
        schema_version=1,
        recipe=RecipeDigest(name="demo", sha256=file_sha256(recipe_file)),
        series=digest_series(root),
        upstream=recipe.upstream,
        requirements=(
            RequirementFile(
                filename=requirements.name,
                purpose="runtime",
                python="3.11",
                sha256=file_sha256(requirements),
            ),
        ),
        wheel=OutputWheel(
            filename=target.name,
            version=recipe.output.version,
            size_bytes=packed.size_bytes,
            sha256=packed.sha256,
            files_sha256=packed.files_sha256,
        ),
    )
    project = Project(root, wheelhouse, wheel)
    project.lock_path.write_text(lock.model_dump_json(exclude_none=True))
    return project


def recipe_text(wheel: bytes) -> str:
    return f"""\
schema_version = 1
name = "demo"
[upstream]
distribution = "demo-cpu"
version = "1.0"
[upstream.wheel]
filename = "{FILENAME}"
size_bytes = {len(wheel)}
sha256 = "{hashlib.sha256(wheel).hexdigest()}"
[output]
distribution = "vllm"
version = "1.0+cpu.decideploy.1"
[requirements]
pythons = ["3.11"]
platform = "x86_64-manylinux_2_31"
exclude_newer = 2026-01-01T00:00:00Z
exclude = ["torchvision"]
"""
