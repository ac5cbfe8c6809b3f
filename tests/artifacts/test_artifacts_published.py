import json
import socket
from pathlib import Path

import pytest

from decideploy.artifacts import sizes_of, verify
from decideploy.artifacts.facts import loaded_bytes
from decideploy.cli import main
from decideploy.errors import ConfigError

GIB = 1024**3
MODEL = "autotrust/GEV-26B-Decide-NVFP4"


def test_published_sizes_give_the_published_weights() -> None:
    facts = sizes_of(MODEL)
    assert facts is not None
    gib = {name: size / GIB for name, size in facts.weight_bytes.items()}
    assert gib["experts"] == pytest.approx(11.96, abs=0.01)
    assert gib["embedding"] == 1.375
    assert gib["vision"] == pytest.approx(1.03, abs=0.05)
    assert gib["dense_mlp"] == pytest.approx(1.00, abs=0.01)
    # The V of K=V layers, 0.03 GiB, comes on top as it is loaded.
    assert gib["attention"] == pytest.approx(2.09 - 0.03, abs=0.01)
    assert (facts.quant_algo, facts.head, facts.name) == ("NVFP4", None, "GEV-26B-Decide-NVFP4")


def test_plan_by_a_published_name_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert main(["plan", MODEL, "--hardware", "rtx4090", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["moe_backend"] == "marlin"
    assert document["max_model_len"] >= 4096
    assert "sizes alone" in document["notes"][0]
    assert main(["plan", MODEL, "--hardware", "rtx4090", "--json", "--max-images", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["max_model_len"] >= 8192
    assert main(["plan", MODEL, "--hardware", "t4"]) == 7
    assert "needs" in capsys.readouterr().err


def test_a_lone_configuration_gives_what_the_whole_folder_gives(
    demo_model: Path, demo_model_nvfp4: Path, tmp_path: Path
) -> None:
    for model in (demo_model, demo_model_nvfp4):
        folder = tmp_path / model.parent.name / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes((model / "config.json").read_bytes())
        whole, alone = verify(model).known_facts(), sizes_of(str(folder))
        assert alone is not None
        told = {name: size for name, size in whole.weight_bytes.items() if name != "vision"}
        assert {name: alone.weight_bytes[name] for name in told} == told
        assert alone.quant_algo == whole.quant_algo
        assert alone.adapter.lora_target_modules == whole.adapter.lora_target_modules
        assert sizes_of(str(model)) is None


@pytest.mark.parametrize(
    ("text", "told"), [("{", "not JSON"), ("{}", "hidden_size"), ('{"text_config": {}}', "layer_types")]
)
def test_a_configuration_without_sizes_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=told):
        sizes_of(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "dtype", "loaded"),
    [
        ("a.weight", "F32", 50),
        ("a.weight", "BF16", 100),
        ("a.weight", "U8", 100),
        ("a.weight_scale_2", "F32", 100),
    ],
)
def test_weights_count_as_they_are_loaded(name: str, dtype: str, loaded: int) -> None:
    assert loaded_bytes(name, dtype, 100) == loaded
