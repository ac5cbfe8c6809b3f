from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from decisions import bare_prompt, random_decisions
from tokenizers import Tokenizer

from decideploy import nvfp4
from decideploy.artifacts.safetensors_file import read_header
from decideploy.cli import main
from decideploy.decide import DecideRequest, render
from decideploy.demo import write_demo_model
from decideploy.demo.random_weights import bell, flat
from decideploy.demo.tokenizer import CONTROL_TOKENS, VERBALIZERS

BELL = [1062886897, 1037929030, 1060673419]
FLAT = [1071143370, 3207323909, 3207077376]


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_model / "tokenizer.json"))


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.integration
def test_a_second_run_writes_the_same_bytes(demo_model: Path, tmp_path: Path) -> None:
    write_demo_model(tmp_path / "again")
    assert digests(tmp_path / "again") == digests(demo_model)


def test_a_folder_that_holds_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("mine")
    assert main(["demo-model", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "not empty" in told
    assert "next:" in told
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_random_streams_are_pinned_to_their_bits() -> None:
    # Recorded values: another numpy or machine must give these, or published digests of the model are void.
    assert bell(30, "x", (3,), 1.0).view(np.uint32).tolist() == BELL
    assert flat(30, "x", (3,), 1.0).view(np.uint32).tolist() == FLAT


def test_both_variants_share_all_but_the_experts(demo_model: Path, demo_model_nvfp4: Path) -> None:
    plain, packed = digests(demo_model), digests(demo_model_nvfp4)
    changed = {name for name in plain.keys() | packed.keys() if plain.get(name) != packed.get(name)}
    assert changed == {
        "config.json",
        "golden.json",
        "hf_quant_config.json",
        "nvfp4_activation_amax.json",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }


def test_model_is_small(demo_model: Path) -> None:
    assert sum(path.stat().st_size for path in demo_model.rglob("*") if path.is_file()) < 200_000_000


def test_verbalizers_are_single_tokens_with_gemma_ids(tokenizer: Tokenizer) -> None:
    for label, token_id in VERBALIZERS.items():
        assert tokenizer.encode(label, add_special_tokens=False).ids == [token_id]
    assert VERBALIZERS["true"] == 3397
    assert VERBALIZERS["P"] == 236_791


def test_every_id_has_a_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 262_144
    assert tokenizer.id_to_token(262_143) is not None
    assert {token: tokenizer.token_to_id(token) for token in CONTROL_TOKENS} == CONTROL_TOKENS


@pytest.mark.parametrize(
    "text", ["The quick (fox), 42%!", "naïve café", "日本語 🦊", "  two  spaces\n\n\ttab"]
)
def test_text_survives_encoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_prompts_are_compact_and_start_with_bos(tokenizer: Tokenizer) -> None:
    prompts = [bare_prompt(decision) for decision in random_decisions(30, seed=3)]
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    assert all(ids[0] == 2 and ids[-1] == tokenizer.token_to_id(":") for ids in encoded)
    assert sum(map(len, encoded)) < sum(map(len, prompts)) / 2.2


def test_nvfp4_is_within_half_a_step(demo_model_nvfp4: Path) -> None:
    weight = bell(1, "weight", (32, 64), 0.1)
    quantized = nvfp4.quantize(weight, nvfp4.tensor_scale(weight))
    error = np.abs(nvfp4.dequantize(quantized) - weight).reshape(32, 4, 16).max(axis=-1)
    largest = np.abs(weight).reshape(32, 4, 16).max(axis=-1)
    # The widest FP4 gap is 2 of 6, and the group scale itself is rounded to 3 mantissa bits.
    assert (error <= largest * (1 / 6 + 1 / 16)).all()
    names = read_header(demo_model_nvfp4 / "model-00002-of-00002.safetensors")
    assert sum(".experts." in name for name in names) == 6 * 8 * 3 * 4


def test_fp8_scales_round_trip() -> None:
    codes = np.arange(1, 0x7F, dtype=np.uint8)
    assert np.array_equal(nvfp4.e4m3_bits(nvfp4.e4m3_values(codes)), codes)
    assert nvfp4.e4m3_values(np.array([0x7E], np.uint8))[0] == 448


def test_generation_defaults_hold_the_served_models_trap(demo_model: Path) -> None:
    defaults = json.loads((demo_model / "generation_config.json").read_text())
    assert (defaults["top_k"], defaults["top_p"]) == (64, 0.95)


def test_the_tests_own_prompt_is_the_products() -> None:
    for decision in random_decisions(60, seed=4):
        options = list(decision.options) if decision.kind == "choice" else None
        fields = {"kind": decision.kind, "state": decision.state, "question": decision.question}
        request = DecideRequest.model_validate(fields | ({"options": options} if options else {}))
        assert render(request) == bare_prompt(decision)
