"""Every rule finds its own single fault in an otherwise whole model, and no other rule does."""

from __future__ import annotations

from pathlib import Path

import author_faults
import numpy as np
import pytest
from fault_edits import (
    ADAPTER,
    ADAPTER_CONFIG,
    CONFIG,
    DECISION_HEAD,
    FULL,
    GATE,
    INDEX,
    LAYER,
    LM_HEAD,
    Q_PROJ,
    QUANT,
    REST,
    TEXT,
    UP,
    add,
    as_half,
    break_value_copy,
    foreign_head_row,
    header_length,
    link_out,
    rename_key_to_exclude,
    replaced,
    set_shard,
    stored_lm_head,
    swap_bias,
    swap_verbalizers,
    with_exclusion,
    without,
    without_control_token,
    without_exclusions,
    zeros,
)
from model_edits import (
    Edit,
    both,
    drop,
    drop_key,
    edit_json,
    edit_tensors,
    linked_copy,
    put,
    remove,
    rename,
    replace_bytes,
    scale,
    set_key,
    set_value,
    truncate,
)

from decideploy.artifacts import files as artifact_files
from decideploy.artifacts import head as artifact_head
from decideploy.artifacts import lock_folder, verify
from decideploy.artifacts.safetensors_file import StoredTensor, bf16, float32
from decideploy.artifacts.verification import rule_codes

BF16_NAN = 0x7FC0


def exchange_labels(document: dict[str, dict[str, dict[str, int]]]) -> None:
    vocabulary = document["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]


BF16_FAULTS: list[tuple[str, str, Edit]] = [
    ("file-missing", "generation", remove("generation_config.json")),
    ("file-missing", "tokenizer", remove("tokenizer.json")),
    ("file-missing", "adapter", remove(ADAPTER)),
    ("file-missing", "decision-head", remove(DECISION_HEAD)),
    ("file-missing", "calibration", remove("calibration.json")),
    ("json-malformed", "config", replace_bytes(CONFIG, b"{")),
    ("json-malformed", "list", replace_bytes("calibration.json", b"[]")),
    ("json-malformed", "index", replace_bytes(INDEX, b"\xff\xfe")),
    ("json-malformed", "adapter", replace_bytes(ADAPTER_CONFIG, b"")),
    ("config-key", "absent", drop_key(CONFIG, "text_config.num_experts")),
    ("config-key", "text", set_key(CONFIG, "text_config.hidden_size", "128")),
    ("config-key", "layers", edit_json(CONFIG, lambda c: c["text_config"]["layer_types"].pop())),
    ("config-key", "no-text-config", drop_key(CONFIG, "text_config")),
    ("header-malformed", "truncated-shard", truncate(REST, 100)),
    ("header-malformed", "truncated-adapter", truncate(ADAPTER, 2)),
    ("header-malformed", "huge-header", header_length(1 << 62)),
    ("header-malformed", "header-cut", header_length(20)),
    ("shard-missing", "shard", remove(REST)),
    ("index-tensor-absent", "norm", drop(TEXT, "model.language_model.norm.weight")),
    ("index-tensor-unnamed", "extra", put(REST, "model.vision_tower.extra", zeros(4))),
    ("index-total-size", "total", set_key(INDEX, "metadata.total_size", 1)),
    ("tensor-missing", "o_proj", without(f"{LAYER}.self_attn.o_proj.weight", TEXT)),
    ("tensor-unexpected", "v_proj", replaced(f"{FULL[17:]}.v_proj.weight", zeros(64, 128), TEXT)),
    ("tensor-shape", "norm", replaced("model.language_model.norm.weight", zeros(127), TEXT)),
    (
        "tensor-dtype",
        "norm",
        replaced("model.language_model.norm.weight", float32(np.ones(128, np.float32)), TEXT),
    ),
    ("lm-head-stored", "lm_head", replaced("lm_head.weight", zeros(2, 128), REST)),
    ("lm-head-untied", "outer", set_key(CONFIG, "tie_word_embeddings", False)),
    ("lm-head-untied", "inner", set_key(CONFIG, "text_config.tie_word_embeddings", False)),
    ("experts-missing", "down", without(f"{LAYER}.experts.down_proj", REST)),
    ("experts-missing", "shape", replaced(f"{LAYER}.experts.down_proj", zeros(8, 128, 63), REST)),
    ("adapter-peft-type", "ia3", set_key(ADAPTER_CONFIG, "peft_type", "IA3")),
    ("adapter-rank", "large", set_key(ADAPTER_CONFIG, "r", 64)),
    ("adapter-rank", "text", set_key(ADAPTER_CONFIG, "r", "32")),
    ("adapter-alpha", "double", set_key(ADAPTER_CONFIG, "lora_alpha", 64)),
    ("adapter-rslora", "on", set_key(ADAPTER_CONFIG, "use_rslora", True)),
    ("adapter-bias", "all", set_key(ADAPTER_CONFIG, "bias", "all")),
    ("adapter-dora", "on", set_key(ADAPTER_CONFIG, "use_dora", True)),
    ("adapter-modules-to-save", "head", set_key(ADAPTER_CONFIG, "modules_to_save", ["lm_head"])),
    ("adapter-pattern", "rank", set_key(ADAPTER_CONFIG, "rank_pattern", {"q_proj": 8})),
    ("adapter-pattern", "alpha", set_key(ADAPTER_CONFIG, "alpha_pattern", {"q_proj": 8})),
    ("adapter-target-modules", "text", set_key(ADAPTER_CONFIG, "target_modules", "all-linear")),
    (
        "adapter-target-modules",
        "unlisted",
        edit_json(ADAPTER_CONFIG, lambda c: c["target_modules"].remove("q_proj")),
    ),
    (
        "adapter-target-modules",
        "unused",
        edit_json(ADAPTER_CONFIG, lambda c: c["target_modules"].append("fc1")),
    ),
    (
        "adapter-without-head",
        "unlisted",
        edit_json(ADAPTER_CONFIG, lambda c: c["target_modules"].remove("lm_head")),
    ),
    (
        "adapter-without-head",
        "no-tensors",
        drop(ADAPTER, f"{LM_HEAD}.lora_A.weight", f"{LM_HEAD}.lora_B.weight"),
    ),
    (
        "adapter-targets-experts",
        "listed",
        edit_json(ADAPTER_CONFIG, lambda c: c["target_modules"].append("experts")),
    ),
    (
        "adapter-targets-experts",
        "tensor",
        put(ADAPTER, f"base_model.model.{LAYER}.experts.0.gate_proj.lora_A.weight", bf16(np.ones((32, 128)))),
    ),
    (
        "adapter-key-unmapped",
        "path",
        rename(
            ADAPTER,
            {f"{Q_PROJ}.lora_{s}.weight": f"{Q_PROJ.replace('.1.', '.9.')}.lora_{s}.weight" for s in "AB"},
        ),
    ),
    ("adapter-pair-incomplete", "b", drop(ADAPTER, f"{Q_PROJ}.lora_B.weight")),
    ("adapter-shape", "a", put(ADAPTER, f"{Q_PROJ}.lora_A.weight", bf16(np.ones((8, 128))))),
    (
        "adapter-value-copy",
        "absent",
        drop(ADAPTER, f"{FULL}.v_proj.lora_A.weight", f"{FULL}.v_proj.lora_B.weight"),
    ),
    ("adapter-value-copy", "differs", edit_tensors(ADAPTER, break_value_copy)),
    ("adapter-not-finite", "nan", set_value(ADAPTER, f"{Q_PROJ}.lora_A.weight", (0, 0), BF16_NAN)),
    ("adapter-not-finite", "head", set_value(ADAPTER, f"{LM_HEAD}.lora_A.weight", (0, 0), BF16_NAN)),
    (
        "adapter-dtype",
        "bytes",
        put(
            ADAPTER, f"{Q_PROJ}.lora_A.weight", StoredTensor(dtype="U8", values=np.ones((32, 128), np.uint8))
        ),
    ),
    ("adapter-zero", "b", put(ADAPTER, f"{Q_PROJ}.lora_B.weight", zeros(256, 32))),
    ("head-malformed", "bias", edit_json(DECISION_HEAD, lambda c: c["bias"].pop())),
    ("head-malformed", "version", set_key(DECISION_HEAD, "slots.template_version", "bare-v2")),
    ("head-malformed", "range", set_key(DECISION_HEAD, "slots.ranges.score", [2, 9])),
    ("head-tensors", "absent", drop("head.safetensors", "proj.bias")),
    ("head-tensors", "nan", set_value("head.safetensors", "proj.weight", (0, 0), float("nan"))),
    ("head-bias-disagrees", "bias", edit_json(DECISION_HEAD, swap_bias)),
    ("head-row-foreign", "row", edit_tensors(ADAPTER, foreign_head_row)),
    ("head-delta-disagrees", "scaled", scale(ADAPTER, f"{LM_HEAD}.lora_A.weight", 0.5)),
    ("head-delta-disagrees", "other-head", scale("head.safetensors", "proj.weight", 2.0)),
    ("judge-config-disagrees", "softcap", set_key("judge_config.json", "softcap", 50.0)),
    ("judge-config-disagrees", "hidden", set_key("judge_config.json", "hidden_size", 2816)),
    ("judge-config-disagrees", "ids", swap_verbalizers("judge_config.json")),
    ("architecture", "causal", set_key(CONFIG, "architectures", ["Gemma4ForCausalLM"])),
    ("tokenizer-vocabulary", "large", set_key("tokenizer.json", "model.vocab.extra", 262_144)),
    ("head-verbalizer", "exchanged", edit_json("tokenizer.json", exchange_labels)),
    ("calibration", "zero", set_key("calibration.json", "per_kind.noul", 0)),
    ("calibration", "tiny", set_key("calibration.json", "per_kind.noul", 1e-320)),
    ("calibration", "huge", set_key("calibration.json", "per_kind.noul", 101)),
    ("calibration", "absent", drop_key("calibration.json", "per_kind.score")),
    ("calibration", "text", set_key("calibration.json", "per_kind.choice", "1.0")),
    ("chat-template-empty", "empty", replace_bytes("chat_template.jinja", b"\n")),
    ("calibration", "gold", set_key("calibration_gold.json", "per_kind.noul", -1)),
    ("calibration", "endless", set_key("calibration.json", "per_kind.noul", 10**400)),
    ("json-malformed", "deep", replace_bytes("generation_config.json", b'{"a":' * 90_000)),
    ("json-malformed", "gold", replace_bytes("calibration_gold.json", b"null")),
    ("pickle-file", "adapter", add("adapter_vllm/adapter_model.bin", b"\x80\x04")),
    ("pickle-file", "root", add("pytorch_model.PT", b"")),
    ("symlink-escape", "shard", link_out(REST)),
    ("symlink-escape", "extra", link_out("README.md")),
    ("remote-code", "config", set_key(CONFIG, "auto_map", {"AutoConfig": "code.Config"})),
    ("index-malformed", "parent", set_shard("../" + TEXT)),
    ("index-malformed", "absolute", set_shard("/etc/hostname")),
    ("index-malformed", "number", set_shard(3)),
    ("index-malformed", "empty", set_key(INDEX, "weight_map", {})),
    ("shard-unindexed", "old", add("model-00003-of-00003.safetensors", b"")),
    ("tensor-duplicate", "norm", put(REST, "model.language_model.norm.weight", bf16(np.ones(128)))),
    (
        "tensor-dtype",
        "vision",
        edit_tensors(
            REST, lambda tensors: as_half(tensors, "model.embed_vision.embedding_projection.weight")
        ),
    ),
    ("lm-head-stored", "twice", both(*(stored_lm_head(f"{p}lm_head.weight") for p in ("", "model.")))),
    ("adapter-option-ignored", "transposed", set_key(ADAPTER_CONFIG, "fan_in_fan_out", True)),
    ("adapter-option-ignored", "layers", set_key(ADAPTER_CONFIG, "layers_to_transform", [0, 1])),
    ("adapter-base-changed", "pissa", set_key(ADAPTER_CONFIG, "init_lora_weights", "pissa_niter_4")),
    ("judge-config-disagrees", "prefix", set_key("judge_config.json", "readout.prefix_token", "<eos>")),
    (
        "head-verbalizer-split",
        "spaced",
        set_key("tokenizer.json", "normalizer", {"type": "Prepend", "prepend": "x"}),
    ),
    ("special-token", "config", set_key(CONFIG, "text_config.bos_token_id", 3)),
    ("special-token", "generation", set_key("generation_config.json", "pad_token_id", None)),
    ("special-token", "name", set_key("tokenizer_config.json", "pad_token", "<none>")),
    ("turn-end", "absent", set_key("generation_config.json", "eos_token_id", 1)),
    ("thought-channel", "channel", without_control_token("<|channel>")),
    ("thought-channel", "think", without_control_token("<|think|>")),
    ("image-token", "id", set_key(CONFIG, "image_token_id", 258_881)),
    ("image-token", "end", set_key("tokenizer_config.json", "eoi_token", "<audio|>")),
    ("processor", "patch", set_key("processor_config.json", "image_processor.patch_size", 14)),
    ("processor", "tokens", set_key("processor_config.json", "image_seq_length", 256)),
    ("chat-template-tokens", "other", replace_bytes("chat_template.jinja", b"{{ messages }}")),
    (
        "chat-template-disagrees",
        "inline",
        set_key("tokenizer_config.json", "chat_template", "{{ messages }}"),
    ),
]

NVFP4_FAULTS: list[tuple[str, str, Edit]] = [
    (
        "quant-algo",
        "method",
        set_key(CONFIG, "quantization_config.quant_method", "compressed-tensors"),
    ),
    ("quant-config-disagrees", "algo", set_key(QUANT, "quantization.quant_algo", "FP8")),
    ("quant-config-disagrees", "list", set_key(QUANT, "quantization.exclude_modules", ["lm_head"])),
    ("quant-group-size", "legacy", set_key(QUANT, "quantization.group_size", 32)),
    (
        "quant-group-size",
        "group",
        set_key(CONFIG, "quantization_config.config_groups.group_0.weights.group_size", 32),
    ),
    ("quant-exclude-key", "key", edit_json(CONFIG, rename_key_to_exclude)),
    ("quant-config-malformed", "list", set_key(CONFIG, "quantization_config.ignore", "lm_head")),
    ("quant-config-malformed", "groups", set_key(CONFIG, "quantization_config.config_groups", [1])),
    ("quant-config-malformed", "section", drop_key(QUANT, "quantization")),
    ("quant-pattern-unmatched", "typo", with_exclusion("model.language_model.layers.2.self_atn*")),
    ("quant-kv-cache", "config", set_key(CONFIG, "quantization_config.kv_cache_quant_algo", "FP8")),
    (
        "tensor-duplicate",
        "spelling",
        replaced(f"{GATE.replace('.experts.', '.moe.experts.')}.weight", zeros(2), TEXT),
    ),
    ("quant-not-excluded", "vision-tower", without_exclusions("vision_tower")),
    ("quant-kv-cache", "fp8", set_key(QUANT, "quantization.kv_cache_quant_algo", "FP8")),
    ("quant-not-excluded", "attention", without_exclusions("layers.2.self_attn")),
    ("quant-not-excluded", "lm_head", without_exclusions("lm_head")),
    ("quant-not-excluded", "vision", without_exclusions("embed_vision")),
    ("quant-experts-excluded", "substring", with_exclusion("model.language_model.layers.1")),
    ("quant-experts-excluded", "glob", with_exclusion("*.moe.expert?")),
    (
        "quantized-outside-experts",
        "router",
        replaced(f"{LAYER}.router.proj.weight_scale", zeros(8, 8), REST),
    ),
    ("quant-undeclared", "both", both(drop_key(CONFIG, "quantization_config"), remove(QUANT))),
    ("expert-tensor-missing", "input_scale", without(f"{GATE}.input_scale", REST)),
    ("expert-tensor-unexpected", "number", replaced(f"{LAYER}.experts.8.gate_proj.weight", zeros(2), REST)),
    ("expert-tensor-form", "unpacked", replaced(f"{GATE}.weight", zeros(64, 128), REST)),
    ("input-scale", "zero", set_value(REST, f"{GATE}.input_scale", (), 0.0)),
    ("input-scale", "inf", set_value(REST, f"{GATE}.input_scale", (), float("inf"))),
    ("weight-scale-2", "nan", set_value(REST, f"{UP}.weight_scale_2", (), float("nan"))),
    ("gate-up-scale", "differ", scale(REST, f"{UP}.weight_scale_2", 2.0)),
    ("group-scale-nan", "nan", set_value(REST, f"{UP}.weight_scale", (1, 2), 0x7F)),
]

# Faults that cannot stand alone: config.json cannot have a larger vocabulary, another cap or another
# algorithm without contradicting the other files too.
COMPOUND_FAULTS: list[tuple[str, str, Edit]] = [
    ("vocab-size", "large", set_key(CONFIG, "text_config.vocab_size", 262_208)),
    ("softcap", "none", set_key(CONFIG, "text_config.final_logit_softcapping", None)),
    ("quant-algo", "mxfp4", set_key(CONFIG, "quantization_config.quant_algo", "MXFP4")),
]


def flip_bit(tensors: dict[str, StoredTensor]) -> None:
    tensors[min(tensors)].values.flat[0] ^= 1


# Faults that only a comparison with the manifest of the whole model finds.
MANIFEST_FAULTS: list[tuple[str, str, Edit]] = [
    ("manifest-extra", "new", add("notes.txt", b"new")),
    ("manifest-missing", "unread", remove("preprocessor_config.json")),
    ("manifest-mismatched", "size", replace_bytes("preprocessor_config.json", b"{}")),
    ("manifest-mismatched", "byte", edit_tensors(REST, flip_bit)),
]


@pytest.fixture(autouse=True)
def _parse_linked_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_files, "_read_json", _read_json_of_target)
    monkeypatch.setattr(artifact_head, "_load_tokenizer", lambda path, *version: _tokenizer(version[0], path))


def _read_json_of_target(path: Path) -> object:
    linked = path.is_file() and path.stat().st_nlink > 1
    return _read_json_cached(path.stat().st_ino, path) if linked else READ_JSON(path)


READ_JSON = artifact_files._read_json
CACHE: dict[int, object] = {}


def _read_json_cached(inode: int, path: Path) -> object:
    # An original outlives its links, so its number stays its own.
    if inode not in CACHE:
        CACHE[inode] = READ_JSON(path)
    return CACHE[inode]


READ_TOKENIZER = artifact_head._load_tokenizer.__wrapped__
TOKENIZERS: dict[int, object] = {}


def _tokenizer(inode: int, path: Path) -> object:
    if path.stat().st_nlink == 1:
        return READ_TOKENIZER(path)
    if inode not in TOKENIZERS:
        TOKENIZERS[inode] = READ_TOKENIZER(path)
    return TOKENIZERS[inode]


def found(model: Path, out: Path, edit: Edit) -> list[str]:
    copy = linked_copy(model, out / "copy")
    edit(copy)
    return sorted({issue.code for issue in verify(copy, deep=True).issues})


def cases(faults: list[tuple[str, str, Edit]]) -> list[object]:
    return [pytest.param(code, edit, id=f"{code}:{name}") for code, name, edit in faults]


@pytest.mark.parametrize("deep", [False, True])
def test_whole_models_have_no_issue(demo_model: Path, demo_model_nvfp4: Path, deep: bool) -> None:
    for model in (demo_model, demo_model_nvfp4):
        assert verify(model, deep=deep).issues == ()


@pytest.mark.integration
@pytest.mark.parametrize(("code", "edit"), cases(BF16_FAULTS))
def test_single_fault_of_a_bf16_model(code: str, edit: Edit, demo_model: Path, tmp_path: Path) -> None:
    assert found(demo_model, tmp_path, edit) == [code]


@pytest.mark.integration
@pytest.mark.parametrize(("code", "edit"), cases(NVFP4_FAULTS))
def test_single_fault_of_an_nvfp4_model(
    code: str, edit: Edit, demo_model_nvfp4: Path, tmp_path: Path
) -> None:
    assert found(demo_model_nvfp4, tmp_path, edit) == [code]


def test_one_copy_of_a_tied_lm_head_is_no_fault(demo_model: Path, tmp_path: Path) -> None:
    assert found(demo_model, tmp_path, stored_lm_head("lm_head.weight")) == []


def test_other_exporters_expert_names_are_no_fault(demo_model_nvfp4: Path, tmp_path: Path) -> None:
    def spelled(names: dict[str, object]) -> None:
        for name in list(names):
            names[name.replace(".experts.", ".moe.experts.")] = names.pop(name)

    edit = both(edit_tensors(REST, spelled), edit_json(INDEX, lambda index: spelled(index["weight_map"])))
    assert found(demo_model_nvfp4, tmp_path, edit) == []


def test_links_of_a_hub_snapshot_are_no_fault(demo_model: Path, tmp_path: Path) -> None:
    snapshot = linked_copy(demo_model, tmp_path / "snapshots" / ("0" * 40))
    (tmp_path / "blobs").mkdir()
    for name in (REST, "config.json"):
        (snapshot / name).rename(tmp_path / "blobs" / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert verify(snapshot).issues == ()


def test_there_are_more_than_eighty_single_faults() -> None:
    assert len(BF16_FAULTS) + len(NVFP4_FAULTS) >= 80


@pytest.mark.parametrize(("code", "edit"), cases(MANIFEST_FAULTS))
def test_single_fault_against_a_manifest(code: str, edit: Edit, demo_model: Path, tmp_path: Path) -> None:
    copy = linked_copy(demo_model, tmp_path / "copy")
    manifest = lock_folder(demo_model)
    edit(copy)
    assert [issue.code for issue in verify(copy, deep=True, manifest=manifest).issues] == [code]


@pytest.mark.parametrize(("code", "edit"), cases(COMPOUND_FAULTS))
def test_fault_that_others_see_too(code: str, edit: Edit, demo_model_nvfp4: Path, tmp_path: Path) -> None:
    assert code in found(demo_model_nvfp4, tmp_path, edit)


def test_every_rule_has_a_fault_that_only_it_finds() -> None:
    known = (*BF16_FAULTS, *NVFP4_FAULTS, *COMPOUND_FAULTS, *MANIFEST_FAULTS, *author_faults.BF16)
    tried = {code for code, _, _ in (*known, *author_faults.NVFP4)}
    assert tried == set(rule_codes())


def test_all_faults_are_collected(demo_model: Path, tmp_path: Path) -> None:
    edits = both(remove("generation_config.json"), set_key("calibration.json", "per_kind.noul", -1))
    edits = both(edits, set_key(ADAPTER_CONFIG, "use_dora", True))
    assert found(demo_model, tmp_path, edits) == ["adapter-dora", "calibration", "file-missing"]
