import json
from pathlib import Path
from typing import Any

import pytest
from decide_fakes import head_document
from pydantic import ValidationError

from decideploy.decide import Calibration, DecideResponse, DecisionHead
from decideploy.errors import VerificationError


def write(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "document.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_head_is_read_with_its_slots(tmp_path: Path) -> None:
    head = DecisionHead.read(write(tmp_path, head_document()))
    assert len(head.bias) == len(head.verbalizer_ids) == 24
    assert list(head.slot_range("score", 6)) == [2, 3, 4, 5, 6, 7]
    assert list(head.slot_range("choice", 3)) == [8, 9, 10]


def spoil(path: str, value: Any) -> dict[str, Any]:
    document = head_document()
    target: Any = document
    *parents, last = path.split("/")
    for step in parents:
        target = target[step]
    if value is KeyError:
        del target[last]
    else:
        target[int(last) if isinstance(target, list) else last] = value
    return document


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (spoil("bias/3", float("nan")), "bias[3]"),
        (spoil("bias/3", float("inf")), "bias[3]"),
        (spoil("bias/3", "0.5"), "bias[3]"),
        (spoil("bias/3", True), "bias[3]"),
        (spoil("bias", [0.0] * 23), "bias"),
        (spoil("bias", KeyError), "bias"),
        (spoil("verbalizer_ids/0", -1), "verbalizer_ids[0]"),
        (spoil("verbalizer_ids/0", 1.0), "verbalizer_ids[0]"),
        (spoil("verbalizer_ids/0", 301), "verbalizer_ids"),
        (spoil("slots/num_slots", 25), "slots.num_slots"),
        (spoil("slots/template_version", "bare-v2"), "slots.template_version"),
        (spoil("slots/template_version", KeyError), "slots.template_version"),
        (spoil("slots/ranges/choice", [8, 23]), "slots.ranges.choice"),
        (spoil("slots/ranges/noul", KeyError), "slots.ranges.noul"),
        ("{", ""),
        (json.dumps(head_document())[:-1] + ', "softcap": 1, "softcap": 1}', ""),
        (json.dumps({**head_document(), "softcap": float("nan")}), ""),
        ("[]", ""),
    ],
)
def test_head_faults_name_file_and_key(tmp_path: Path, document: Any, key: str) -> None:
    path = write(tmp_path, document)
    with pytest.raises(VerificationError) as caught:
        DecisionHead.read(path)
    assert [fault.where for fault in caught.value.issues] == [f"{path}: {key}" if key else str(path)]


def test_keys_that_only_the_authors_know_are_let_be(tmp_path: Path) -> None:
    expected = DecisionHead.model_validate_json(json.dumps(head_document()))
    assert DecisionHead.read(write(tmp_path, spoil("softcap", 30.0))) == expected
    calibration = {"per_kind": {"noul": 1, "choice": 1, "score": 1, "note": "x"}, "ece": 0.01}
    assert Calibration.read(write(tmp_path, calibration)).temperature("noul") == 1


def test_all_head_faults_are_told_at_once(tmp_path: Path) -> None:
    document = spoil("bias/3", None)
    document["slots"]["num_slots"] = 1
    document["verbalizer_ids"][5] = "x"
    with pytest.raises(VerificationError) as caught:
        DecisionHead.read(write(tmp_path, document))
    assert len(caught.value.issues) == 3


def test_missing_file_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"head\.json") as caught:
        DecisionHead.read(tmp_path / "head.json")
    assert caught.value.exit_code == 5


def test_calibration_has_temperatures_and_the_digest_of_its_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, '{"per_kind": {"noul": 1.5, "choice": 2, "score": 0.5}}')
    calibration = Calibration.read(path)
    temperatures = [calibration.temperature(kind) for kind in ("noul", "choice", "score")]
    assert temperatures == [1.5, 2.0, 0.5]
    assert calibration.sha256 == "37b60a6a00c11a1038f11cd3539197bfb94e27875a1c1d47fbcacd3ea7b5bf3c"


@pytest.mark.parametrize("value", [0, -1.0, 1e-320, 0.009, 101, float("nan"), float("inf"), "1", None])
def test_temperature_must_be_sane(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path, {"per_kind": {"noul": 1.0, "choice": value, "score": 1.0}})
    with pytest.raises(VerificationError) as caught:
        Calibration.read(path)
    assert [fault.where for fault in caught.value.issues] == [f"{path}: per_kind.choice"]


@pytest.mark.parametrize("value", [0.01, 100])
def test_the_bounds_of_the_temperature_are_in_range(tmp_path: Path, value: float) -> None:
    path = write(tmp_path, {"per_kind": {"noul": 1.0, "choice": value, "score": 1.0}})
    assert Calibration.read(path).temperature("choice") == value


def test_an_answer_has_finite_probabilities() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer = {"options": ("a",), "probabilities": (float("nan"),), "choice": "a", "choice_index": 0}
    with pytest.raises(ValidationError, match=r"probabilities\.0"):
        DecideResponse.model_validate({**answer, "usage": usage})
