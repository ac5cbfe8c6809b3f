from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model_edits import linked_copy, put, read_tensors, rename, set_key

from decideploy.artifacts import convert_adapter, verify
from decideploy.artifacts.convert import head_delta, read_lm_head_rows
from decideploy.artifacts.safetensors_file import bf16, read_float32, read_header
from decideploy.cli import main
from decideploy.errors import ConfigError

LM_HEAD = "base_model.model.lm_head"
ADAPTER = "adapter/adapter_model.safetensors"


def values(path: Path, name: str) -> np.ndarray:
    return read_float32(read_header(path)[name]).astype(np.float64)


def test_base_plus_delta_is_the_head_on_verbalizers_and_nothing_elsewhere() -> None:
    rng = np.random.default_rng(5)
    ids = rng.permutation(500)[:24].tolist()
    base = rng.integers(-64, 64, (500, 16)).astype(np.float32) / 64
    head = rng.integers(-64, 64, (24, 16)).astype(np.float32) / 64
    pair = head_delta(head, base[ids], ids, vocab_size=500)
    total = base.astype(np.float64) + pair.lora_b.astype(np.float64) @ pair.lora_a.astype(np.float64)
    expected = base.astype(np.float64)
    expected[ids] = head
    assert np.array_equal(total, expected)


def test_written_delta_is_the_head_to_bfloat16_rounding(demo_model: Path) -> None:
    written = demo_model / "adapter_vllm" / "adapter_model.safetensors"
    ids = json.loads((demo_model / "judge_config.json").read_text())["verbalizer_ids"]
    lora_b = values(written, f"{LM_HEAD}.lora_B.weight")
    delta = lora_b[ids] @ values(written, f"{LM_HEAD}.lora_A.weight")
    base = read_lm_head_rows(demo_model, ids).astype(np.float64)
    head = values(demo_model / "head.safetensors", "proj.weight")
    assert np.all(np.abs(base + delta - head) <= 2.0**-8 * np.abs(head - base))
    assert sorted(np.flatnonzero(lora_b.any(axis=1))) == sorted(ids)


def test_backbone_deltas_keep_their_scale(demo_model: Path) -> None:
    source, written = demo_model / ADAPTER, demo_model / "adapter_vllm" / "adapter_model.safetensors"
    config = json.loads((demo_model / "adapter" / "adapter_config.json").read_text())
    converted = json.loads((demo_model / "adapter_vllm" / "adapter_config.json").read_text())
    for name in read_header(source):
        if ".lora_A." in name:
            b_name = name.replace(".lora_A.", ".lora_B.")
            before = config["lora_alpha"] / config["r"] * values(source, b_name) @ values(source, name)
            scaling = converted["lora_alpha"] / converted["r"]
            after = scaling * values(written, b_name) @ values(written, name)
            assert np.array_equal(before, after), name


def test_keys_of_full_layers_serve_values_too(demo_model: Path) -> None:
    tensors = read_tensors(demo_model / "adapter_vllm" / "adapter_model.safetensors")
    attention = "base_model.model.model.language_model.layers.5.self_attn"
    for side in "AB":
        key, value = (tensors[f"{attention}.{name}.lora_{side}.weight"] for name in ("k_proj", "v_proj"))
        assert np.array_equal(key.values, value.values)
    sliding = attention.replace(".5.", ".1.")
    assert not np.array_equal(
        tensors[f"{sliding}.k_proj.lora_B.weight"].values, tensors[f"{sliding}.v_proj.lora_B.weight"].values
    )


def test_conversion_of_a_custom_folder_verifies(demo_model: Path, tmp_path: Path) -> None:
    result = convert_adapter(demo_model, tmp_path / "out")
    assert json.loads(json.dumps(result.to_dict()))["rank"] == result.rank == 32
    assert [name.rpartition(".")[2] for name in result.value_copies] == ["v_proj"]
    assert verify(demo_model, adapter=tmp_path / "out").issues == ()


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern", "modules_to_save", "use_dora"])
def test_features_that_the_engine_drops_are_refused(demo_model: Path, tmp_path: Path, key: str) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    set_key("adapter/adapter_config.json", key, {"q_proj": 4})(model)
    with pytest.raises(ConfigError, match=key):
        convert_adapter(model, tmp_path / "out")


def test_rank_above_the_limit_is_refused(demo_model: Path, tmp_path: Path) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    q_proj = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    put(ADAPTER, f"{q_proj}.lora_A.weight", bf16(np.ones((33, 128))))(model)
    with pytest.raises(ConfigError, match="needs rank 33"):
        convert_adapter(model, tmp_path / "out")


def test_incomplete_pair_is_refused(demo_model: Path, tmp_path: Path) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    q_proj = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    rename(ADAPTER, {f"{q_proj}.lora_A.weight": "base_model.model.other.lora_A.weight"})(model)
    with pytest.raises(ConfigError, match="complete"):
        convert_adapter(model, tmp_path / "out")


def test_rank_stabilised_scaling_is_folded_in(demo_model: Path, tmp_path: Path) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    set_key("adapter/adapter_config.json", "use_rslora", True)(model)
    convert_adapter(model, tmp_path / "out")
    name = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_B.weight"
    scaled = values(tmp_path / "out" / "adapter_model.safetensors", name)[:, :8]
    assert np.allclose(scaled, values(demo_model / ADAPTER, name) * 16 / np.sqrt(8), rtol=2**-8)


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert-adapter", str(tmp_path / "missing")]) == 2
    told = capsys.readouterr().err
    assert "no such model folder" in told
    assert f"where: {tmp_path}/missing" in told
    assert "next:" in told
    assert not (tmp_path / "missing").exists()


def test_a_file_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read JSON") as caught:
        convert_adapter(tmp_path, tmp_path / "out")
    assert caught.value.where == str(tmp_path / "judge_config.json")
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("judge_config.json", "verbalizer_ids", None),
        ("judge_config.json", "slots", []),
        ("config.json", "text_config", {}),
        ("adapter/adapter_config.json", "r", "eight"),
        ("adapter/adapter_config.json", "r", 0),
    ],
)
def test_keys_that_the_conversion_lacks_are_told(
    demo_model: Path, tmp_path: Path, file: str, key: str, value: object
) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    set_key(file, key, value)(model)
    with pytest.raises(ConfigError, match="decideploy verify"):
        convert_adapter(model, tmp_path / "out")
