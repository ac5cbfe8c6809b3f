"""The pinned sources with the series, against the wheel that is released and patched: the same Python."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from decideploy.build import build, read_series
from decideploy.containers.source import stage_source_tree
from decideploy.errors import ConfigError
from decideploy.pins import cache_folder

ROOT = Path(__file__).resolve().parents[2]
# What vLLM's own VLLM_USE_PRECOMPILED takes from a released wheel beside the compiled parts: Python of other
# projects, which its build fetches.
FETCHED = re.compile(
    r"vllm/vllm_flash_attn/(?!__init__\.py|flash_attn_interface\.py).*"
    r"|vllm/third_party/(triton_kernels|flashmla|deep_gemm|tml_fa4|fmha_sm100)/.*"
)


def test_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear reader")
    with pytest.raises(ConfigError, match="not empty"):
        stage_source_tree(tmp_path, root=ROOT)


@pytest.mark.integration
def test_patched_sources_have_the_python_of_the_patched_wheel(tmp_path: Path) -> None:
    tree = tmp_path / "vllm"
    changed = stage_source_tree(tree, root=ROOT)
    assert set(changed) == {path for patch in read_series(ROOT) for path in patch.paths}
    sources = {path.relative_to(tree).as_posix(): path for path in (tree / "vllm").rglob("*.py")}
    with zipfile.ZipFile(build("cuda", tmp_path / "dist", cache=cache_folder()).wheel) as wheel:
        shipped = {name for name in wheel.namelist() if name.endswith(".py")}
        differing = {name for name in sources if wheel.read(name) != sources[name].read_bytes()}
    # It names the commit and the version, which the build writes.
    assert differing == {"vllm/_version.py"}
    assert sources.keys() <= shipped
    assert [name for name in sorted(shipped - sources.keys()) if not FETCHED.fullmatch(name)] == []
    assert shipped - sources.keys(), "the released wheel holds fetched Python"
