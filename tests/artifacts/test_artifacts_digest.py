"""What the model's digest sees, and what it does not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from decideploy.artifacts.digest import SAMPLE_BYTES, SAMPLES, model_digest

HEADER = json.dumps({"w": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}).encode()
SHARD = len(HEADER).to_bytes(8, "little") + HEADER + bytes(1 << 20)
DATA = 8 + len(HEADER)

Change = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    files = {
        "config.json": b"{}",
        "calibration.json": b"{}",
        "model-00001-of-00001.safetensors": SHARD,
        "adapter_vllm/decision_head.json": b"{}",
        "adapter_vllm/adapter_model.safetensors": SHARD,
        "README.md": b"words",
    }
    for name, content in files.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "model"


def put(name: str, place: int, value: int) -> Change:
    """Change one byte of a file."""

    def change(model: Path) -> None:
        content = bytearray((model / name).read_bytes())
        content[place] = value
        (model / name).write_bytes(content)

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("config.json", 0, 32),
        put("calibration.json", 0, 32),
        put("adapter_vllm/decision_head.json", 0, 32),
        put("adapter_vllm/adapter_model.safetensors", DATA + SAMPLE_BYTES + 1, 1),
        put("model-00001-of-00001.safetensors", 20, 32),
        put("model-00001-of-00001.safetensors", DATA + (1 << 20) // SAMPLES * 17 + 3, 1),
        lambda model: (model / "tokenizer.json").write_bytes(b"{}"),
        lambda model: (model / "model-00002-of-00002.safetensors").write_bytes(SHARD),
        lambda model: (model / "adapter_vllm/adapter_model.safetensors").unlink(),
    ],
)
def test_what_decides_answers_changes_the_digest(model: Path, change: Change) -> None:
    before = model_digest(model)
    change(model)
    assert model_digest(model) != before


@pytest.mark.parametrize(
    "change",
    [
        put("README.md", 0, 32),
        lambda model: (model / "golden.json").write_bytes(b"{}"),
        lambda model: (model / "head.safetensors").write_bytes(SHARD),
        # Between two samples: this is what `decideploy lock-model` is for.
        put("model-00001-of-00001.safetensors", DATA + SAMPLE_BYTES + 1, 1),
    ],
)
def test_what_decides_none_or_is_not_sampled_leaves_it(model: Path, change: Change) -> None:
    before = model_digest(model)
    change(model)
    assert model_digest(model) == before


def test_another_adapter_is_another_model(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (model / "adapter_vllm").rename(other)
    assert model_digest(model, adapter=other) != model_digest(model)
    (other / "decision_head.json").write_bytes(b"{ }")
    with_blank = model_digest(model, adapter=other)
    (other / "decision_head.json").write_bytes(b"{}")
    assert model_digest(model, adapter=other) != with_blank
