from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from model_edits import linked_copy, remove, set_key
from rich.console import Console

from decideploy.artifacts import print_verification, resolve_model, to_json, verify
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.verification import RULES
from decideploy.errors import ConfigError, VerificationError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "verify_artifacts.py"

SCHEMA = json.loads((ROOT / "docs" / "schemas" / "verification.schema.json").read_text())


def test_facts_are_those_of_the_files(demo_model: Path, demo_model_nvfp4: Path) -> None:
    plain, packed = verify(demo_model).known_facts(), verify(demo_model_nvfp4).known_facts()
    assert (plain.quant_algo, packed.quant_algo) == (None, "NVFP4")
    assert plain.layer_types.count("full_attention") == 1
    assert plain.weight_bytes["embedding"] == 262_144 * plain.hidden_size * 2
    weights = 3 * plain.hidden_size * plain.moe_intermediate_size * plain.num_experts * plain.num_layers
    assert plain.weight_bytes["experts"] == 2 * weights
    scalars = 2 * 4 * 3 * plain.num_experts * plain.num_layers
    assert packed.weight_bytes["experts"] == weights // 2 + weights // 16 + scalars
    shards = sum(file.stat().st_size for file in demo_model.glob("model-*.safetensors"))
    assert 0 < shards - sum(plain.weight_bytes.values()) < 100_000


def test_adapter_facts_name_what_the_engine_must_be_told(demo_model: Path) -> None:
    adapter = verify(demo_model).known_facts().adapter
    assert adapter is not None
    projections = ("down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj")
    assert adapter.lora_target_modules == projections
    assert adapter.rank == 32


def test_relative_paths_are_the_same_model(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo_model.parent)
    relative = verify(Path(demo_model.name), adapter=Path(demo_model.name, "adapter_vllm"))
    assert relative.issues == ()
    assert relative.known_facts() == verify(demo_model).known_facts()


def test_unreadable_facts_never_pass_in_silence(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(files: ModelFiles) -> None:
        raise UnavailableError("shape")

    monkeypatch.setattr("decideploy.artifacts.verification.read_facts", unavailable)
    assert [issue.code for issue in verify(demo_model).errors] == ["facts-unread"]


def test_codes_are_unique_and_rules_tell_what_to_do() -> None:
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes))
    assert all(rule.consequence and rule.next_step and rule.check.__doc__ for rule in RULES)


def test_errors_are_raised_together(demo_model: Path, tmp_path: Path) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    remove("generation_config.json")(model)
    set_key("calibration.json", "per_kind.noul", 0)(model)
    with pytest.raises(VerificationError) as caught:
        verify(model).raise_for_issues()
    assert {issue.code for issue in caught.value.issues} == {"file-missing", "calibration"}
    assert "next:" in str(caught.value)


def test_warnings_do_not_stop_a_launch(demo_model_nvfp4: Path, tmp_path: Path) -> None:
    model = linked_copy(demo_model_nvfp4, tmp_path / "model")
    set_key("hf_quant_config.json", "quantization.kv_cache_quant_algo", "FP8")(model)
    verification = verify(model)
    verification.raise_for_issues()
    assert [issue.severity for issue in verification.issues] == ["warning"]


def test_empty_folder_has_every_file_missing_and_no_facts(tmp_path: Path) -> None:
    verification = verify(tmp_path)
    assert {issue.code for issue in verification.issues} == {"file-missing"}
    assert verification.facts is None
    with pytest.raises(VerificationError):
        verification.known_facts()


def test_no_folder_is_a_wrong_argument(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        verify(tmp_path / "none")


def test_report_for_people_and_for_programs(demo_model: Path, tmp_path: Path) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    set_key("adapter_vllm/adapter_config.json", "use_dora", True)(model)
    verification = verify(model)
    document = json.loads(json.dumps(to_json(verification)))
    jsonschema.validate(document, SCHEMA)
    assert document["ok"] is False
    assert document["issues"][0]["code"] == "adapter-dora"
    console = Console(file=io.StringIO(), width=120)
    print_verification(verification, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[adapter-dora]" in printed
    assert "1 error," in printed
    assert "next: train plain LoRA" in printed


@pytest.mark.integration
@pytest.mark.parametrize(("broken", "status"), [(False, 0), (True, 5)])
def test_script_needs_no_install(demo_model: Path, tmp_path: Path, broken: bool, status: int) -> None:
    model = linked_copy(demo_model, tmp_path / "model")
    if broken:
        remove("calibration.json")(model)
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'vllm', 'transformers', 'peft')))"
    run = (
        f"{blocked}; import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", run, str(SCRIPT), str(model), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == status, result.stderr
    assert json.loads(result.stdout)["ok"] is not broken


def run_without(package: str, model: Path) -> subprocess.CompletedProcess[str]:
    """Run the script where ``package`` is missing; None in sys.modules stops its import."""
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = [{str(SCRIPT)!r}, {str(model)!r}]; "
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["numpy", "pydantic", "rich", "tokenizers"])
def test_script_names_the_package_that_is_missing(package: str, tmp_path: Path) -> None:
    done = run_without(package, tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"error: {package} is not installed here; run `pip install {package}`\n"


def test_script_names_every_package_that_is_missing(tmp_path: Path) -> None:
    bare = [sys.executable, "-I", "-S", str(SCRIPT), str(tmp_path)]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("run `pip install numpy pydantic rich tokenizers`\n")


@pytest.mark.integration
@pytest.mark.parametrize("package", ["httpx", "huggingface_hub", "safetensors"])
def test_local_folder_needs_no_network_library(package: str, demo_model: Path) -> None:
    done = run_without(package, demo_model)
    assert (done.returncode, done.stderr) == (0, "")


def test_local_folder_is_its_own_resolution(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path), revision=None) == tmp_path


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [("owner/name", None, "40"), ("owner/name", "main", "40"), ("no such/folder/here", "0" * 40, "neither")],
)
def test_unpinned_or_unknown_models_are_refused(model: str, revision: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_model(model, revision=revision)
