"""Whatever bytes a file holds, verification ends in issues: no other exception, no hang, no bloat."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_edits import linked_copy, replace_bytes

from decideploy.artifacts import to_json, verify
from decideploy.artifacts.adapter import RULES as ADAPTER_RULES
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.quantization import RULES as QUANTIZATION_RULES
from decideploy.artifacts.report import github_annotations, print_verification, to_sarif
from decideploy.artifacts.safetensors_file import MalformedFileError, read_header
from decideploy.artifacts.text import RULES as TEXT_RULES

# Tens of seconds together; the fast tests keep the single faults.
pytestmark = pytest.mark.integration

FUZZ = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
FEW = settings(FUZZ, max_examples=8)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.integers(-2, 40) | st.integers(2**60, 2**70) | VALUES
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F9"]) | VALUES,
        "shape": st.lists(NUMBERS, max_size=10) | VALUES,
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2) | VALUES,
    }
)
HEADERS = st.dictionaries(st.text(max_size=6) | st.just("__metadata__"), ENTRIES | VALUES, max_size=4)


def file_of(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@FUZZ
@given(
    st.binary(max_size=200)
    | st.binary(max_size=100).map(file_of)
    | st.builds(file_of, HEADERS.map(lambda header: json.dumps(header).encode()), st.binary(max_size=64))
)
def test_any_bytes_are_a_header_or_malformed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    try:
        tensors = read_header(path)
    except MalformedFileError:
        return
    # What is accepted covers the file and nothing else.
    assert sum(tensor.size_bytes for tensor in tensors.values()) <= len(content) - 8
    assert all(0 <= tensor.begin <= tensor.end <= len(content) for tensor in tensors.values())


@FUZZ
@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z_.0-9]{1,12}\Z"), st.lists(st.integers(0, 3), max_size=3), max_size=5
    ),
    st.booleans(),
)
def test_both_readers_of_entries_agree(tmp_path: Path, shapes: dict[str, list[int]], spaced: bool) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    separators = (", ", ": ") if spaced else (",", ":")
    text = json.dumps(header, separators=separators).encode()
    (tmp_path / "x").write_bytes(file_of(text, bytes(offset)))
    found = read_header(tmp_path / "x")
    assert {name: list(tensor.shape) for name, tensor in found.items()} == shapes


HOSTILE: dict[str, Callable[[], bytes]] = {
    "huge-length": lambda: struct.pack("<Q", (1 << 64) - 1) + b"{}",
    "long-header": lambda: file_of(b" " * 200_000_000),
    "deep-lists": lambda: file_of(b"[" * 9_000_000),
    "deep-entry": lambda: file_of(b'{"a":' * 1_000_000),
    "flat-keys": lambda: file_of(b"{" + b",".join(b'"%x":1' % n for n in range(900_000)) + b"}"),
    "long-shape": lambda: file_of(b'{"a":{"dtype":"U8","shape":[' + b"1," * 4_000_000 + b"1]}}"),
    "many-entries": lambda: file_of(
        b"{"
        + b",".join(b'"%x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}' % n for n in range(160_000))
        + b"}",
        b"0",
    ),
    "overflow": lambda: file_of(
        b'{"a":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,0]}}' % (2**33, 2**33), bytes(4)
    ),
    "negative-offset": lambda: file_of(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}', b"0"),
    "offset-of-2**63": lambda: file_of(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}}' % (2**63 - 1, 2**63), b"0"
    ),
    "name-twice": lambda: file_of(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"00",
    ),
    "key-twice": lambda: file_of(
        b'{"a":{"dtype":"U8","dtype":"F64","shape":[1],"data_offsets":[0,1]}}', b"0"
    ),
    "nan": lambda: file_of(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', b"0"),
    "infinity": lambda: file_of(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,Infinity]}}', b"0"),
    "not-utf-8": lambda: file_of(b'{"\xff\xfe":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"0"),
    "utf-16": lambda: file_of('{"a":1}'.encode("utf-16")),
    "digits": lambda: file_of(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5_000_000 + b"]}}"),
    "wide-characters": lambda: file_of(b'{"__metadata__":{"a":"' + "𝄞".encode() * 2_000_000 + b'"}}'),
}

# Not getrusage: its peak survives exec and would be the parent's.
MEASURE = """
import re, sys, time
from pathlib import Path
from decideploy.artifacts.safetensors_file import MalformedFileError, read_header

def peak_bytes():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

before = peak_bytes()
started = time.process_time()
try:
    read_header(Path(sys.argv[1]))
    refused = "no"
except MalformedFileError as error:
    refused = "yes" if len(str(error)) < 1000 else "at length"
spent = time.process_time() - started
print(refused, spent, peak_bytes() - before)
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header_costs_under_a_second_and_50_mb(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(HOSTILE[name]())
    command = [sys.executable, "-c", MEASURE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused, seconds, grown_bytes = done.stdout.split()
    assert refused == "yes"
    assert float(seconds) < 1
    assert int(grown_bytes) < 50_000_000


@pytest.fixture(scope="module")
def copy(demo_model_nvfp4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked_copy(demo_model_nvfp4, tmp_path_factory.mktemp("fuzz") / "model")


CONFIG_KEYS = ("text_config", "vision_config", "quantization_config", "architectures", "auto_map")
ADAPTER_KEYS = ("peft_type", "r", "lora_alpha", "bias", "target_modules", "modules_to_save", "rank_pattern")


def run_rules(files: ModelFiles) -> None:
    for rule in (*TEXT_RULES.rules, *ADAPTER_RULES.rules, *QUANTIZATION_RULES.rules):
        if rule.deep or rule.code in ("adapter-not-finite", "adapter-zero"):
            continue
        try:
            list(rule.issues(files))
        except UnavailableError:
            continue


@FEW
@given(st.sampled_from(CONFIG_KEYS), VALUES)
def test_any_config_ends_in_issues(copy: Path, key: str, value: object) -> None:
    document = json.loads((copy / "config.json").read_text())
    files = ModelFiles(copy)
    files._documents[copy / "config.json"] = document | {key: value}
    run_rules(files)


@FEW
@given(st.sampled_from(ADAPTER_KEYS), VALUES)
def test_any_adapter_config_ends_in_issues(copy: Path, key: str, value: object) -> None:
    files = ModelFiles(copy)
    document = dict(files.adapter_config)
    files._documents[files.adapter_config_path] = document | {key: value}
    run_rules(files)


NAMES = (
    *("config.json", "hf_quant_config.json", "model.safetensors.index.json", "tokenizer_config.json"),
    *("generation_config.json", "processor_config.json", "judge_config.json", "calibration.json"),
    *("adapter_vllm/adapter_config.json", "adapter_vllm/decision_head.json", "tokenizer.json"),
    *("head.safetensors", "adapter_vllm/adapter_model.safetensors", "model-00002-of-00002.safetensors"),
)
SECTIONS = ("weight_map", "model", "per_kind", "slots", "quantization", "text_config")


@settings(FEW, max_examples=12)
@given(
    st.sampled_from(NAMES),
    VALUES.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(
        st.sampled_from(["weight_map", "model", "per_kind", "slots", "quantization"]), VALUES
    ).map(lambda value: json.dumps(value).encode())
    | HEADERS.map(lambda header: file_of(json.dumps(header).encode())),
)
def test_any_file_ends_in_issues_that_can_be_reported(
    demo_model_nvfp4: Path, tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    model = linked_copy(demo_model_nvfp4, tmp_path_factory.mktemp("any") / "model")
    replace_bytes(name, content)(model)
    verification = verify(model)
    assert verification.issues
    json.dumps(to_json(verification))
    json.dumps(to_sarif(verification)).encode()
    "".join(github_annotations(verification)).encode()
    print_verification(verification)
