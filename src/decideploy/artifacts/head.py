"""Rules on the decision head: slots, verbalizers, bias, and its delta in the adapter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decideploy.artifacts import files as names
from decideploy.artifacts.adapter import pairs
from decideploy.artifacts.convert import PEFT_PREFIX
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.safetensors_file import TensorInfo, read_float32, read_float32_row
from decideploy.artifacts.shape import EMBEDDING
from decideploy.decide.head import DecisionHead
from decideploy.decide.slots import KIND_RANGES, NUM_SLOTS, SLOT_LABELS
from decideploy.errors import Diagnostic, VerificationError

RULES = RuleSet()

_CONVERT = "make adapter_vllm/ again with `decideploy convert-adapter`"
# Rounding A to bfloat16 changes a weight by at most 2**-8 of the delta; base rows are exact.
_BF16_STEP = 2.0**-8


def decision_head(files: ModelFiles) -> DecisionHead:
    """The head of adapter_vllm, or UnavailableError when it is malformed."""
    head = _read_head(files)
    if isinstance(head, tuple):
        raise UnavailableError(str(files.decision_head_path))
    return head


def _read_head(files: ModelFiles) -> DecisionHead | tuple[Diagnostic, ...]:
    files.json(files.decision_head_path)
    try:
        return DecisionHead.read(files.decision_head_path)
    except VerificationError as error:
        return tuple(error.issues)


@RULES.rule(
    "head-malformed",
    consequence="slots would be read as something else",
    next_step=_CONVERT,
)
def head_malformed(files: ModelFiles) -> Iterator[Finding]:
    """decision_head.json has 24 finite biases, 24 distinct verbalizers and the published slot ranges."""
    head = _read_head(files)
    for fault in head if isinstance(head, tuple) else ():
        key = fault.where.partition(": ")[2]
        yield Finding(what=fault.what, where=files.label(files.decision_head_path), key=key)


@RULES.rule(
    "head-verbalizer",
    consequence="the slot reads the probability of another token",
    next_step="use tokenizer and decision head of one revision",
)
def head_verbalizer(files: ModelFiles) -> Iterator[Finding]:
    """Each verbalizer id is the single token of its slot's label."""
    vocabulary = _vocabulary(files)
    for slot, (label, token_id) in enumerate(
        zip(SLOT_LABELS, decision_head(files).verbalizer_ids, strict=True)
    ):
        if vocabulary.get(label) != token_id:
            what = f"slot {slot} reads token {token_id}, {label!r} is token {vocabulary.get(label)}"
            yield Finding(
                what=what, where=files.label(files.decision_head_path), key=f"verbalizer_ids[{slot}]"
            )


@RULES.rule(
    "head-verbalizer-split",
    consequence="the label is several tokens: the slot's token was never trained as its answer",
    next_step="use tokenizer and decision head of one revision",
    deep=True,
)
def head_verbalizer_split(files: ModelFiles) -> Iterator[Finding]:
    """The tokenizer encodes each label as its verbalizer alone."""
    vocabulary, head = _vocabulary(files), decision_head(files)
    tokenizer = _tokenizer(files.root / names.TOKENIZER)
    if tokenizer is None:
        yield Finding(what="the tokenizers library refuses the file", where=names.TOKENIZER)
        return
    # Both are tokenizer-setting's fault.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for label, token_id in zip(SLOT_LABELS, head.verbalizer_ids, strict=True):
        ids = tokenizer.encode(label, add_special_tokens=False).ids
        # Another single id is head-verbalizer's fault.
        if vocabulary.get(label) == token_id and ids != [token_id]:
            what = f"{label!r} is encoded as {ids}, not as {token_id} alone"
            yield Finding(what=what, where=names.TOKENIZER, key="model")


def _tokenizer(path: Path) -> Any:
    state = path.stat()
    return _load_tokenizer(path, state.st_ino, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _load_tokenizer(path: Path, *_version: int) -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415

    # The library raises bare exceptions for every fault of the file.
    try:
        return Tokenizer.from_file(str(path))
    except Exception:
        return None


def _vocabulary(files: ModelFiles) -> dict[str, int]:
    model = files.json(names.TOKENIZER).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not all(type(value) is int for value in vocabulary.values()):
        raise UnavailableError(names.TOKENIZER)
    return vocabulary


@RULES.rule(
    "judge-config-disagrees",
    consequence="the read-out differs from the one that the head was trained with",
    next_step="use judge_config.json and adapter_vllm/ of one revision, or " + _CONVERT,
)
def judge_config_disagrees(files: ModelFiles) -> Iterator[Finding]:
    """judge_config.json tells the same slots, verbalizers, width and cap as the files that are served."""
    judge, head = files.json(names.JUDGE_CONFIG), decision_head(files)
    slots = _section(judge, "slots")
    expected = {
        "verbalizer_ids": (judge.get("verbalizer_ids"), list(head.verbalizer_ids)),
        "slots.template_version": (slots.get("template_version"), head.slots.template_version),
        "slots.num_slots": (slots.get("num_slots", NUM_SLOTS), NUM_SLOTS),
        "slots.ranges": (slots.get("ranges"), {kind: list(span) for kind, span in KIND_RANGES.items()}),
        "hidden_size": (judge.get("hidden_size"), files.shape.hidden_size),
        "softcap": (judge.get("softcap"), files.text_config.get("final_logit_softcapping")),
        "readout.prefix_token": (_section(judge, "readout").get("prefix_token"), _bos_token(files)),
    }
    for key, (told, served) in expected.items():
        if told != served:
            what = f"{key} is {told}, served is {served}"[:400]
            yield Finding(what=what, where=names.JUDGE_CONFIG, key=key)


def _section(document: names.Document, key: str) -> dict[str, Any]:
    section = document.get(key)
    return section if isinstance(section, dict) else {}


def _bos_token(files: ModelFiles) -> Any:
    # Absent where the tokenizer's configuration is at fault, which is that rule's concern.
    try:
        return files.json(names.TOKENIZER_CONFIG).get("bos_token")
    except UnavailableError:
        return _section(files.json(names.JUDGE_CONFIG), "readout").get("prefix_token")


def _head_tensor(files: ModelFiles, name: str, shape: tuple[int, ...]) -> TensorInfo:
    tensor = files.header(files.root / names.HEAD).get(name)
    if tensor is None or tensor.shape != shape or tensor.dtype != "F32":
        raise UnavailableError(name)
    return tensor


@RULES.rule(
    "head-tensors",
    consequence="the decision head cannot be compared with what is served",
    next_step="download head.safetensors at the pinned revision",
)
def head_tensors(files: ModelFiles) -> Iterator[Finding]:
    """head.safetensors holds float32 ``proj.weight [24, hidden]`` and ``proj.bias [24]``, finite."""
    header = files.header(files.root / names.HEAD)
    shapes: dict[str, tuple[int, ...]] = {
        "proj.weight": (NUM_SLOTS, files.shape.hidden_size),
        "proj.bias": (NUM_SLOTS,),
    }
    for name, shape in shapes.items():
        tensor = header.get(name)
        if tensor is None:
            yield Finding(what=f"{name} is missing", where=names.HEAD, key=name)
        elif (tensor.dtype, tensor.shape) != ("F32", shape):
            what = f"{name} is {tensor.dtype} {list(tensor.shape)}, not F32 {list(shape)}"
            yield Finding(what=what, where=names.HEAD, key=name)
        elif not np.isfinite(read_float32(tensor)).all():
            yield Finding(what=f"{name} holds NaN or infinity", where=names.HEAD, key=name)


@RULES.rule(
    "head-bias-disagrees",
    consequence="every slot is shifted by a wrong constant",
    next_step=_CONVERT,
)
def head_bias_disagrees(files: ModelFiles) -> Iterator[Finding]:
    """The bias that is served is the trained head's."""
    served = np.array(decision_head(files).bias)
    trained = read_float32(_head_tensor(files, "proj.bias", (NUM_SLOTS,)))
    if not np.isfinite(trained).all():
        return
    for slot in np.flatnonzero(np.abs(served - trained) > 1e-6 * np.maximum(1, np.abs(trained))):
        what = f"slot {slot} has {served[slot]}, head.safetensors {trained[slot]}"
        yield Finding(what=what, where=files.label(files.decision_head_path), key=f"bias[{slot}]")


def _lm_head_pair(files: ModelFiles) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    pair = pairs(files).get("lm_head", {})
    shape, rank = files.shape, files.adapter_config.get("r")
    if not pair.keys() >= {"A", "B"} or type(rank) is not int:
        raise UnavailableError("lm_head")
    if pair["A"].shape != (rank, shape.hidden_size) or pair["B"].shape != (shape.vocab_size, rank):
        raise UnavailableError("lm_head")
    lora_a, lora_b = _read_pair(files, pair["A"], pair["B"])
    if not (np.isfinite(lora_a).all() and np.isfinite(lora_b).all()):
        raise UnavailableError("lm_head")
    return lora_a, lora_b


# Keyed by the view of the files, too: the same path may hold other bytes at the next verification.
@lru_cache(maxsize=1)
def _read_pair(
    _files: ModelFiles, lora_a: TensorInfo, lora_b: TensorInfo
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return read_float32(lora_a), read_float32(lora_b)


@RULES.rule(
    "head-row-foreign",
    consequence="logits of tokens that are no verbalizers change too",
    next_step=_CONVERT,
)
def head_row_foreign(files: ModelFiles) -> Iterator[Finding]:
    """The delta of lm_head touches verbalizer rows only."""
    _, lora_b = _lm_head_pair(files)
    rows = np.setdiff1d(np.flatnonzero(lora_b.any(axis=1)), decision_head(files).verbalizer_ids)
    if rows.size:
        what = f"lora_B is not zero on {rows.size} rows that are no verbalizers, first {rows[0]}"
        yield Finding(
            what=what,
            where=files.label(files.adapter_weights_path),
            key=f"{PEFT_PREFIX}lm_head.lora_B.weight",
        )


@RULES.rule(
    "head-delta-disagrees",
    consequence="slot logits are not those of the trained head",
    next_step="base weights, head and adapter_vllm/ must be of one revision; " + _CONVERT,
)
def head_delta_disagrees(files: ModelFiles) -> Iterator[Finding]:
    """Base row plus delta is the trained head's row on each verbalizer, to bfloat16 rounding."""
    lora_a, lora_b = _lm_head_pair(files)
    ids = decision_head(files).verbalizer_ids
    head = read_float32(_head_tensor(files, "proj.weight", (NUM_SLOTS, lora_a.shape[1]))).astype(np.float64)
    base = files.tensors.get(EMBEDDING)
    if base is None or base.shape != (files.shape.vocab_size, files.shape.hidden_size):
        raise UnavailableError(EMBEDDING)
    if max(ids) >= base.shape[0] or not np.isfinite(head).all():
        raise UnavailableError("verbalizer_ids")
    rows = np.stack([read_float32_row(base, token_id) for token_id in ids]).astype(np.float64)
    delta = lora_b[list(ids)].astype(np.float64) @ lora_a.astype(np.float64)
    error = np.abs(rows + delta - head).max(axis=1)
    allowed = _BF16_STEP * np.abs(head - rows).max(axis=1) + 1e-30
    for slot in np.flatnonzero(error > allowed):
        off = f"is off by {error[slot]:.3g}, bfloat16 explains {allowed[slot]:.3g}"
        what = f"slot {slot} ({SLOT_LABELS[slot]}) {off}"
        yield Finding(
            what=what,
            where=files.label(files.adapter_weights_path),
            key=f"{PEFT_PREFIX}lm_head.lora_A.weight",
        )
