from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from model_edits import edit_json, linked_copy, rename, set_key
from rich.console import Console

from decideploy import cli
from decideploy.artifacts import github_annotations, print_verification, to_json, to_sarif, verify
from decideploy.artifacts.report import FORMATS, MAX_PLACES
from decideploy.artifacts.verification import RULES, Verification
from decideploy.cli import files

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.fixture(scope="module")
def broken(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Verification:
    """Twelve tensors that map to no module, and one warning."""
    model = linked_copy(demo_model, tmp_path_factory.mktemp("report") / "model")
    names = [f"base_model.model.model.language_model.layers.{n}.self_attn.q_proj" for n in range(6)]
    moved = {f"{n}.lora_{s}.weight": f"{n}.odd\n\x1b[1m,%:.lora_{s}.weight" for n in names for s in "AB"}
    rename("adapter_vllm/adapter_model.safetensors", moved)(model)
    edit_json("adapter_vllm/adapter_config.json", lambda config: config["target_modules"].remove("q_proj"))(
        model
    )
    set_key("model.safetensors.index.json", "metadata.total_size", 1)(model)
    return verify(model)


def test_the_published_schema_holds_for_whole_and_broken_models(
    broken: Verification, demo_model: Path, demo_model_nvfp4: Path, tmp_path: Path
) -> None:
    schema = json.loads((SCHEMAS / "verification.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for verification in (broken, verify(demo_model), verify(demo_model_nvfp4), verify(tmp_path)):
        jsonschema.validate(json.loads(json.dumps(to_json(verification))), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(to_json(broken) | {"ok": "no"}, schema)


def test_people_see_each_fault_once_with_its_count_and_remedy(broken: Verification) -> None:
    console = Console(file=io.StringIO(), width=120)
    print_verification(broken, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count("[adapter-key-unmapped] (12)") == 1
    assert f"and {12 - MAX_PLACES} more" in printed
    assert "warning: [index-total-size]" in printed
    assert "\x1b" not in printed
    assert printed.index("error:") < printed.index("warning:")


def test_sarif_names_rule_level_and_file(broken: Verification) -> None:
    document = to_sarif(broken)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.code for rule in RULES]
    for result, issue in zip(run["results"], broken.issues, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == issue.code
        assert result["level"] == issue.severity
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == issue.where


def test_files_are_named_from_where_the_check_runs(
    broken: Verification, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(broken.model.parent)
    first = broken.issues[0]
    (result, *_) = to_sarif(broken)["runs"][0]["results"]
    (location,) = result["locations"]
    place = f"{broken.model.name}/{first.where}"
    assert location["physicalLocation"]["artifactLocation"]["uri"] == place
    assert any(f"file={place}," in line for line in github_annotations(broken))
    monkeypatch.chdir(broken.model)
    assert not any(f"{broken.model.name}/" in line.partition("::")[0] for line in github_annotations(broken))
    assert any(f"file={first.where}," in line for line in github_annotations(broken))


def test_sarif_fits_the_standards_schema(
    broken: Verification, demo_model_nvfp4: Path, tmp_path: Path
) -> None:
    schema = json.loads((Path(__file__).parent / "schemas" / "sarif-2.1.0.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for verification in (broken, verify(demo_model_nvfp4), verify(tmp_path)):
        validator.validate(json.loads(json.dumps(to_sarif(verification))))
    odd = replace(broken.issues[0], code="facts-unread", where="a b/%\n\ud800.json", key="")
    validator.validate(to_sarif(replace(broken, issues=(odd,))))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(to_sarif(broken) | {"version": "2.0.0"})


def test_issue_without_a_rule_is_reported_too(broken: Verification) -> None:
    foreign = replace(broken.issues[0], code="facts-unread")
    (result,) = to_sarif(replace(broken, issues=(foreign,)))["runs"][0]["results"]
    assert result["ruleId"] == "facts-unread"
    assert "ruleIndex" not in result


def test_github_annotations_are_one_escaped_line_a_fault(broken: Verification) -> None:
    lines = github_annotations(broken)
    assert len(lines) == len({issue.code for issue in broken.issues})
    adapter = next(line for line in lines if "adapter-key-unmapped" in line)
    file = "adapter_vllm/adapter_model.safetensors"
    assert adapter.startswith(f"::error file={file},title=adapter-key-unmapped::")
    assert all("\n" not in line and "\x1b" not in line for line in lines)
    assert "%25" in adapter
    assert any(line.startswith("::warning ") for line in lines)


@pytest.mark.parametrize("form", FORMATS)
def test_exit_status_is_the_same_in_every_format(
    form: str, demo_model: Path, broken: Verification, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(demo_model), "--format", form]) == 0
    whole = capsys.readouterr().out
    assert cli.main(["verify", str(broken.model), "--format", form]) == 5
    assert "adapter-key-unmapped" in capsys.readouterr().out
    assert "adapter-key-unmapped" not in whole or form == "sarif"


def test_the_command_offers_every_format() -> None:
    assert files.FORMATS == FORMATS
