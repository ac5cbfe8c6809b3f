"""Single faults as a sloppy or a malicious author makes them: each is caught, most by one rule alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fault_edits import (
    ADAPTER,
    ADAPTER_CONFIG,
    CONFIG,
    DECISION_HEAD,
    GATE,
    INDEX,
    LAYER,
    Q_PROJ,
    REST,
    TEXT,
    UP,
    VISION,
    add,
    index_tensor,
    replaced,
    set_shard,
    with_exclusion,
    without,
    zeros,
)
from model_edits import (
    Edit,
    both,
    edit_json,
    edit_tensors,
    put,
    rename,
    replace_bytes,
    set_key,
    set_value,
)

from decideploy.artifacts.safetensors_file import StoredTensor, bf16, float32

Fault = tuple[str, str, Edit]
TEMPLATE, TOKENIZER, GENERATION = "chat_template.jinja", "tokenizer.json", "generation_config.json"
NORM = "model.language_model.norm.weight"
TOWER = "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight"
TOWER_LORA = f"base_model.model.{TOWER.removesuffix('.weight')}.lora_A.weight"
CUT = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
FILL = {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None}
FILL |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
WEIGHTS = "quantization_config.config_groups.group_0.weights"
ENDLESS = b"{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
BF16_NAN, BF16_INF, E4M3_NEGATIVE = 0x7FC0, 0x7F80, 0xB8


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Edit:
    def edit(model: Path) -> None:
        replace_bytes(name, change((model / name).read_bytes()))(model)

    return edit


def with_bom(name: str) -> Edit:
    return rewritten(name, lambda content: b"\xef\xbb\xbf" + content)


def told_twice(name: str, key: bytes, value: bytes) -> Edit:
    """The key once more before its first place, as a reader that keeps the last would not see."""
    return rewritten(name, lambda content: content.replace(key, key + b": " + value + b", " + key, 1))


def template_and(text: bytes) -> Edit:
    return rewritten(TEMPLATE, lambda content: content + text)


def added_token(token_id: object, content: str) -> Edit:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token = {"id": token_id, "content": content, "special": True, **flags}
    return edit_json(TOKENIZER, lambda document: document["added_tokens"].append(token))


def linked_to_itself(name: str) -> Edit:
    def edit(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to(name)

    return edit


def adapter_linked_out(model: Path) -> None:
    (model / "adapter_vllm").rename(model.parent / "elsewhere")
    (model / "adapter_vllm").symlink_to(model.parent / "elsewhere")


def zeroed(shard: str, tensor: str) -> Edit:
    def change(tensors: dict[str, StoredTensor]) -> None:
        stored = tensors[tensor]
        tensors[tensor] = StoredTensor(dtype=stored.dtype, values=np.zeros_like(stored.values))

    return edit_tensors(shard, change)


def as_dtype(shard: str, tensor: str, dtype: str) -> Edit:
    """The same bytes under another name of their type."""

    def change(tensors: dict[str, StoredTensor]) -> None:
        tensors[tensor] = StoredTensor(dtype=dtype, values=tensors[tensor].values)

    return edit_tensors(shard, change)


def pair_renamed(spell: Callable[[str], str]) -> Edit:
    names = [f"{Q_PROJ}.lora_{side}.weight" for side in "AB"]
    return rename(ADAPTER, {name: spell(name) for name in names})


def named_default(name: str) -> str:
    return name.replace(".weight", ".default.weight")


def in_engine_words(name: str) -> str:
    return name.replace("model.language_model.", "language_model.model.")


def total_as_float(index: dict[str, Any]) -> None:
    index["metadata"]["total_size"] = float(index["metadata"]["total_size"])


def without_true(document: dict[str, Any]) -> None:
    del document["model"]["vocab"]["true"]


def link_inside(model: Path) -> None:
    (model / REST).rename(model / "blob")
    (model / REST).symlink_to("blob")


def repeated_slot(head: dict[str, Any]) -> None:
    head["verbalizer_ids"][3] = head["verbalizer_ids"][2]


def odd_bias(value: object) -> Edit:
    return edit_json(DECISION_HEAD, lambda head: head["bias"].__setitem__(0, value))


def scaled_to(value: float) -> Edit:
    """Gate and up keep one common scale."""
    return both(*(set_value(REST, f"{name}.weight_scale_2", (), value) for name in (GATE, UP)))


def packed_lm_head(model: Path) -> None:
    codes = StoredTensor(dtype="U8", values=np.zeros((262_144, 64), np.uint8))
    replaced("lm_head.weight", codes, REST)(model)


def calibrated(text: bytes) -> Edit:
    return replace_bytes(
        "calibration.json", b'{"per_kind": {"noul": ' + text + b', "choice": 1, "score": 1}}'
    )


def half_bias(head: dict[str, StoredTensor]) -> None:
    head["proj.bias"] = StoredTensor(dtype="F16", values=head["proj.bias"].values.astype(np.float16))


def rows_swapped(head: dict[str, StoredTensor]) -> None:
    head["proj.weight"].values[[0, 1]] = head["proj.weight"].values[[1, 0]]


BF16: list[Fault] = [
    ("symlink-escape", "adapter-folder", adapter_linked_out),
    ("symlink-escape", "loop", linked_to_itself("notes.txt")),
    ("index-malformed", "pickle", set_shard("pytorch_model.bin")),
    ("index-malformed", "config", set_shard(CONFIG)),
    ("index-malformed", "head", set_shard("head.safetensors")),
    ("index-malformed", "windows", set_shard("C:\\model.safetensors")),
    ("index-malformed", "unicode", set_shard("model-\u2170.safetensors")),
    ("index-malformed", "metadata", set_key(INDEX, "metadata", [1])),
    ("index-total-size", "2**63", set_key(INDEX, "metadata.total_size", 2**63)),
    ("shard-missing", "case", set_shard(TEXT.capitalize())),
    ("shard-unindexed", "adapter", add("adapter_vllm/new_embeddings.safetensors", b"")),
    ("header-malformed", "empty", replace_bytes(REST, b"")),
    ("header-malformed", "longer", rewritten(REST, lambda content: content + b"\0")),
    ("json-malformed", "byte-order-mark", with_bom(CONFIG)),
    ("json-malformed", "utf-16", rewritten(CONFIG, lambda content: content.decode().encode("utf-16"))),
    ("json-malformed", "key-twice", told_twice(CONFIG, b'"final_logit_softcapping"', b"20.0")),
    ("json-malformed", "head-twice", told_twice(DECISION_HEAD, b'"bias"', b"[1]")),
    ("json-malformed", "nul", rewritten(CONFIG, lambda content: content + b"\0")),
    ("json-malformed", "nan", rewritten(CONFIG, lambda content: content.replace(b"1e-06", b"NaN", 1))),
    ("json-malformed", "tokenizer-mark", with_bom(TOKENIZER)),
    ("json-malformed", "head-mark", with_bom(DECISION_HEAD)),
    ("json-malformed", "temperature-nan", calibrated(b"NaN")),
    ("json-malformed", "temperature-infinity", calibrated(b"Infinity")),
    ("calibration", "overflow", calibrated(b"1e999")),
    ("calibration", "true", calibrated(b"true")),
    ("config-key", "experts", set_key(CONFIG, "text_config.num_experts", 10**7)),
    ("config-key", "2**63", set_key(CONFIG, "text_config.max_position_embeddings", 2**63)),
    ("config-key", "top-k", set_key(CONFIG, "text_config.top_k_experts", 9)),
    ("config-key", "vision", set_key(CONFIG, "vision_config.hidden_size", None)),
    ("config-constant", "epsilon", set_key(CONFIG, "text_config.rms_norm_eps", 1.0)),
    ("config-constant", "activation", set_key(CONFIG, "text_config.hidden_activation", "relu")),
    ("config-constant", "mask", set_key(CONFIG, "text_config.use_bidirectional_attention", None)),
    ("config-constant", "family", set_key(CONFIG, "model_type", "gemma3")),
    (
        "config-constant",
        "rope",
        set_key(CONFIG, "text_config.rope_parameters.full_attention.rope_theta", 1e4),
    ),
    ("config-dtype", "half", set_key(CONFIG, "dtype", "float16")),
    ("config-dtype", "text", set_key(CONFIG, "text_config.dtype", "float32")),
    ("lm-head-untied", "null", set_key(CONFIG, "tie_word_embeddings", None)),
    ("remote-code", "text", set_key(CONFIG, "text_config.auto_map", {"AutoConfig": "code.Config"})),
    ("remote-code", "images", set_key("preprocessor_config.json", "auto_map", {"A": "code.B"})),
    ("quant-elsewhere", "text", set_key(CONFIG, "text_config.quantization_config", {"quant_method": "fp8"})),
    ("quant-elsewhere", "compressed", set_key(CONFIG, "compression_config", {"format": "pack"})),
    ("tensor-missing", "vision-tower", without(TOWER, REST)),
    ("tensor-missing", "vision-projection", without(VISION, REST)),
    ("tensor-shape", "vision-projection", replaced(VISION, zeros(64, 32), REST)),
    ("tensor-unexpected", "audio", replaced("model.audio_tower.x", zeros(64, 32), REST)),
    ("tensor-unexpected", "draft", replaced("mtp.layers.0.weight", zeros(4), REST)),
    ("weight-not-finite", "nan", set_value(TEXT, f"{LAYER}.self_attn.q_proj.weight", (0, 0), BF16_NAN)),
    ("weight-not-finite", "infinity", set_value(REST, f"{LAYER}.experts.down_proj", (0, 0, 0), BF16_INF)),
    ("weight-zero", "attention", zeroed(TEXT, f"{LAYER}.self_attn.q_proj.weight")),
    ("weight-zero", "experts", zeroed(REST, f"{LAYER}.experts.gate_up_proj")),
    ("adapter-rslora", "text", set_key(ADAPTER_CONFIG, "use_rslora", "false")),
    ("adapter-alpha", "zero", set_key(ADAPTER_CONFIG, "lora_alpha", 0)),
    ("adapter-rank", "33", set_key(ADAPTER_CONFIG, "r", 33)),
    ("adapter-rank", "2**63", set_key(ADAPTER_CONFIG, "r", 2**63)),
    ("adapter-option-ignored", "replicated", set_key(ADAPTER_CONFIG, "layer_replication", [[0, 2]])),
    ("adapter-option-ignored", "arrow", set_key(ADAPTER_CONFIG, "arrow_config", {"top_k": 2})),
    ("adapter-target-modules", "all", set_key(ADAPTER_CONFIG, "target_modules", "all-linear")),
    (
        "adapter-key-unmapped",
        "vision",
        put(
            ADAPTER,
            f"base_model.model.{TOWER.removesuffix('.weight')}.lora_A.weight",
            bf16(np.ones((32, 32))),
        ),
    ),
    (
        "adapter-key-unmapped",
        "default",
        pair_renamed(named_default),
    ),
    ("adapter-key-unmapped", "leading-zero", pair_renamed(lambda name: name.replace(".1.", ".01."))),
    ("adapter-key-unmapped", "magnitude", put(ADAPTER, f"{Q_PROJ}.lora_magnitude_vector", bf16(np.ones(2)))),
    ("adapter-key-unmapped", "bias", put(ADAPTER, f"{Q_PROJ}.lora_B.bias", bf16(np.ones(256)))),
    (
        "adapter-key-duplicate",
        "spelling",
        put(ADAPTER, f"{Q_PROJ[17:]}.lora_B.weight", bf16(np.ones((256, 32)))),
    ),
    ("head-tensors", "half", edit_tensors("head.safetensors", half_bias)),
    ("head-delta-disagrees", "rows-swapped", edit_tensors("head.safetensors", rows_swapped)),
    ("head-malformed", "slot-twice", edit_json(DECISION_HEAD, repeated_slot)),
    ("head-malformed", "bias-text", odd_bias("0.1")),
    ("head-bias-disagrees", "bias-huge", odd_bias(1e39)),
    ("judge-config-disagrees", "slots", set_key("judge_config.json", "slots.num_slots", 23)),
    ("tokenizer-vocabulary", "same-id", set_key(TOKENIZER, "model.vocab.abz", 236_776)),
    ("tokenizer-added-token", "label", added_token(100, "A")),
    ("tokenizer-added-token", "taken", added_token(236_776, "<other>")),
    (
        "tokenizer-added-token",
        "decoder",
        set_key("tokenizer_config.json", "added_tokens_decoder", {"2": {"content": "<other>"}}),
    ),
    (
        "tokenizer-setting",
        "truncation",
        set_key(TOKENIZER, "truncation", CUT),
    ),
    (
        "tokenizer-setting",
        "padding",
        set_key(TOKENIZER, "padding", FILL),
    ),
    ("head-verbalizer-split", "lower-case", set_key(TOKENIZER, "normalizer", {"type": "Lowercase"})),
    ("chat-template-malformed", "syntax", template_and(b"{% if %}")),
    ("chat-template-malformed", "unclosed", template_and(b"{% if messages %}")),
    ("chat-template-malformed", "filter", template_and(b"{{ messages | nosuch }}")),
    ("chat-template-malformed", "escape", template_and(b"{{ ''.__class__.__mro__[1].__subclasses__() }}")),
    (
        "chat-template-malformed",
        "loop",
        template_and(ENDLESS),
    ),
    ("chat-template-malformed", "memory", template_and(b"{{ 'x' * 9999999999 }}")),
    ("chat-template-malformed", "raises", template_and(b"{{ raise_exception('no') }}")),
    ("chat-template-malformed", "comment", replace_bytes(TEMPLATE, b"{# <|turn> <turn|> enable_thinking #}")),
    ("chat-template-malformed", "bytes", template_and(b"\xff\xfe")),
    ("chat-template-malformed", "byte-order-mark", with_bom(TEMPLATE)),
    ("generation-value", "temperature", set_key(GENERATION, "temperature", "hot")),
    ("generation-value", "top-k", set_key(GENERATION, "top_k", -5)),
    ("generation-value", "top-p", set_key(GENERATION, "top_p", 7)),
    ("generation-value", "end-float", set_key(GENERATION, "eos_token_id", [1, 106, 1.5])),
    ("generation-value", "end-label", set_key(GENERATION, "eos_token_id", [1, 106, 236_776])),
    ("generation-limit", "length", set_key(GENERATION, "max_new_tokens", 1)),
    ("generation-limit", "penalty", set_key(GENERATION, "repetition_penalty", 1.3)),
    ("processor", "older-file", set_key("preprocessor_config.json", "patch_size", 14)),
]

NVFP4: list[Fault] = [
    ("quant-algo", "method", set_key(CONFIG, "quantization_config.quant_method", "modelopt_fp8")),
    (
        "quant-scheme",
        "bits",
        set_key(CONFIG, f"{WEIGHTS}.num_bits", 8),
    ),
    ("quant-experts-excluded", "everything", with_exclusion("*")),
    ("quant-experts-excluded", "empty", with_exclusion("")),
    ("quant-experts-excluded", "letter", with_exclusion("e")),
    ("quant-pattern-unmatched", "class", with_exclusion("model.language_model.layers.[1")),
    ("quant-pattern-unmatched", "expression", with_exclusion("re:.*lm_head.*")),
    ("quantized-outside-experts", "lm-head", packed_lm_head),
    ("expert-tensor-form", "one-of-all", as_dtype(REST, f"{GATE}.weight", "I8")),
    ("expert-tensor-form", "other-float", as_dtype(REST, f"{GATE}.weight_scale", "F8_E5M2")),
    ("expert-tensor-form", "empty", replaced(f"{GATE}.input_scale", float32(np.zeros(0)), REST)),
    ("weight-scale-2", "inverse", scaled_to(2688.0)),
    ("weight-scale-2", "denormal", scaled_to(1e-42)),
    ("input-scale", "huge", set_value(REST, f"{GATE}.input_scale", (), 1e30)),
    ("group-scale-negative", "sign", set_value(REST, f"{GATE}.weight_scale", (0, 0), E4M3_NEGATIVE)),
    ("weight-zero", "packed", zeroed(REST, f"{GATE}.weight")),
    ("weight-zero", "scales", zeroed(REST, f"{GATE}.weight_scale")),
]

# Two rules see these: what is wrong lies between two files.
TWICE: list[tuple[set[str], str, Edit]] = [
    (
        {"tensor-missing", "tensor-unexpected"},
        "case",
        both(
            rename(TEXT, {NORM: NORM.replace("norm.", "Norm.")}),
            index_tensor(NORM, None, 0),
            index_tensor(NORM.replace("norm.", "Norm."), TEXT, 0),
        ),
    ),
    (
        {"head-verbalizer", "head-verbalizer-split"},
        "label-gone",
        edit_json(TOKENIZER, without_true),
    ),
    ({"index-tensor-absent"}, "no-tensors", replace_bytes(REST, b"\2\0\0\0\0\0\0\0{}")),
]

# Other spellings that the engine reads alike.
HARMLESS: list[tuple[str, Edit]] = [
    ("crlf", rewritten(CONFIG, lambda content: content.replace(b"\n", b"\r\n"))),
    ("template-crlf", rewritten(TEMPLATE, lambda content: content.replace(b"\n", b"\r\n"))),
    ("no-prefix", pair_renamed(lambda name: name.removeprefix("base_model.model."))),
    (
        "engine-spelling",
        pair_renamed(in_engine_words),
    ),
    ("alpha-float", set_key(ADAPTER_CONFIG, "lora_alpha", 32.0)),
    (
        "total-float",
        edit_json(INDEX, total_as_float),
    ),
    ("link-inside", link_inside),
]
