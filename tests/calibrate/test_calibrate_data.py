import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from decideploy.calibrate import DataError, read_dataset
from decideploy.errors import ConfigError

NOUL = {"kind": "noul", "state": "s", "question": "q"}
CHOICE = {"kind": "choice", "state": "s", "question": "q", "options": ["a", "b", "3"]}


def written(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("fields", "label", "index"),
    [
        (NOUL, "true", 1),
        (NOUL, True, 1),
        (NOUL, False, 0),
        (NOUL, 0, 0),
        ({**NOUL, "kind": "score"}, 4, 4),
        ({**NOUL, "kind": "score"}, "4", 4),
        (CHOICE, "b", 1),
        (CHOICE, "3", 2),
        (CHOICE, 1, 1),
    ],
)
def test_a_label_is_a_text_or_an_index(tmp_path: Path, fields: Any, label: Any, index: int) -> None:
    path = written(tmp_path, "", {**fields, "label": label})
    dataset = read_dataset(path)
    (example,) = dataset.examples
    assert (example.line, example.label) == (2, index)
    assert dataset.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_no_temperature_fits_is_left_out_with_its_reason(tmp_path: Path) -> None:
    many = {**CHOICE, "options": [str(number) for number in range(17)], "label": "3"}
    path = written(tmp_path, {**NOUL, "label": 1}, {**NOUL, "label": 1, "thinking": "auto"}, many)
    dataset = read_dataset(path)
    assert [example.line for example in dataset.examples] == [1]
    assert [(entry.line, entry.reason.split()[0]) for entry in dataset.excluded] == [
        (2, "thinking"),
        (3, "more"),
    ]


def test_every_wrong_line_is_told(tmp_path: Path) -> None:
    lines = ["{", NOUL, {**NOUL, "label": 2}, {**CHOICE, "label": "c"}, {**NOUL, "label": 1.0}]
    lines += [{**NOUL, "label": 1, "kind": "x"}, {**NOUL, "label": -1}]
    lines += [
        json.dumps({**NOUL, "label": 1})[:-1] + more for more in (', "label": 0}', ', "threshold": NaN}')
    ]
    with pytest.raises(DataError) as caught:
        read_dataset(written(tmp_path, *lines))
    told = [fault.where.rsplit(": ", 1)[1] for fault in caught.value.diagnostics()]
    assert told == [f"line {number}" for number in range(1, 10)]
    assert 'no "label"' in caught.value.faults[1].what
    assert "'c' is neither" in caught.value.faults[3].what
    assert "the key 'label' twice" in caught.value.faults[7].what
    assert "NaN is not" in caught.value.faults[8].what


def test_the_faults_of_a_wrong_file_stay_readable(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_dataset(written(tmp_path, *["{"] * 25))
    assert len(caught.value.faults) == 25
    assert "and 5 more lines" in str(caught.value)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no labelled decision"):
        read_dataset(written(tmp_path, ""))


def test_data_that_is_not_utf8_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\n\xff\n")
    with pytest.raises(ConfigError, match="not UTF-8 text") as caught:
        read_dataset(path)
    assert caught.value.where == f"{path}: line 2"
