"""Rules on the adapter that the engine loads: configuration, names, shapes and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeGuard

import numpy as np

from decideploy.artifacts.adapter_keys import engine_module, engine_targets
from decideploy.artifacts.convert import PEFT_PREFIX, RANKS
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.safetensors_file import TensorInfo, read_float32, read_raw
from decideploy.artifacts.shape import TEXT_PREFIX, linear_modules, value_copy_modules

RULES = RuleSet()

MAX_RANK = RANKS[-1]

_CONVERT = "make the adapter again with `decideploy convert-adapter`"


def lora_targets(files: ModelFiles) -> Mapping[str, tuple[int, int]]:
    """``(out, in)`` of every module that an adapter may hold, the copied V projections included."""
    modules = linear_modules(files.shape)
    return modules | {value: modules[key] for key, value in value_copy_modules(files.shape)}


def pairs(files: ModelFiles) -> dict[str, dict[str, TensorInfo]]:
    """Module of this model (checkpoint name) to its ``A`` and ``B``."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for tensor, module, side in _mapped(files):
        if module is not None:
            found.setdefault(module, {})[side] = tensor
    return found


def _mapped(files: ModelFiles) -> Iterator[tuple[TensorInfo, str | None, str]]:
    """Every tensor with its module (checkpoint name), None for one that maps to none, and its side."""
    targets = engine_targets(lora_targets(files))
    for name, tensor in files.adapter_tensors.items():
        module, side = engine_module(name) or ("", "")
        yield tensor, targets.get(module), side


def _complete_pairs(files: ModelFiles) -> Iterator[tuple[str, TensorInfo, TensorInfo]]:
    """Complete pairs of matrices on modules of this model."""
    for module, pair in pairs(files).items():
        if len(pair) == 2 and all(len(t.shape) == 2 for t in pair.values()):
            yield module, pair["A"], pair["B"]


def _config_finding(files: ModelFiles, what: str, key: str) -> Finding:
    return Finding(what=what, where=files.label(files.adapter_config_path), key=key)


def _tensor_finding(files: ModelFiles, what: str, key: str) -> Finding:
    return Finding(what=what, where=files.label(files.adapter_weights_path), key=key)


@RULES.rule("adapter-peft-type", consequence="the engine cannot apply it", next_step="use a LoRA adapter")
def adapter_peft_type(files: ModelFiles) -> Iterator[Finding]:
    """The adapter is a LoRA."""
    peft_type = files.adapter_config.get("peft_type")
    if peft_type != "LORA":
        yield _config_finding(files, f"peft_type is {peft_type!r}", "peft_type")


@RULES.rule(
    "adapter-rank",
    consequence="the engine refuses the adapter, or reserves memory that no plan counted",
    next_step=f"use an adapter of rank at most {MAX_RANK}",
)
def adapter_rank(files: ModelFiles) -> Iterator[Finding]:
    """``r`` is a whole number of at most 32."""
    rank = files.adapter_config.get("r")
    if type(rank) is not int or not 0 < rank <= MAX_RANK:
        yield _config_finding(files, f"r is {rank!r}", "r")


@RULES.rule(
    "adapter-alpha",
    consequence="the engine scales every delta by lora_alpha / r, and the head delta must not be scaled",
    next_step=_CONVERT,
)
def adapter_alpha(files: ModelFiles) -> Iterator[Finding]:
    """``lora_alpha`` equals ``r``: the head's delta is exact only at scale 1."""
    rank, alpha = files.adapter_config.get("r"), files.adapter_config.get("lora_alpha")
    if type(rank) is int and 0 < rank <= MAX_RANK and alpha != rank:
        yield _config_finding(files, f"lora_alpha is {alpha!r}, r is {rank}", "lora_alpha")


@RULES.rule(
    "adapter-rslora",
    consequence="the engine scales by lora_alpha / sqrt(r): every delta is too large",
    next_step=_CONVERT,
)
def adapter_rslora(files: ModelFiles) -> Iterator[Finding]:
    """Rank-stabilised scaling is off."""
    if files.adapter_config.get("use_rslora"):
        told = files.adapter_config["use_rslora"]
        yield _config_finding(files, f"use_rslora is {told!r}"[:200], "use_rslora")


@RULES.rule("adapter-bias", consequence="the engine refuses the adapter", next_step="train without bias")
def adapter_bias(files: ModelFiles) -> Iterator[Finding]:
    """No bias is trained; the decision head's own bias is in decision_head.json."""
    bias = files.adapter_config.get("bias", "none")
    if bias != "none":
        yield _config_finding(files, f"bias is {bias!r}", "bias")


@RULES.rule("adapter-dora", consequence="the engine refuses the adapter", next_step="train plain LoRA")
def adapter_dora(files: ModelFiles) -> Iterator[Finding]:
    """Weight decomposition is off."""
    if files.adapter_config.get("use_dora"):
        yield _config_finding(files, "use_dora is true", "use_dora")


@RULES.rule(
    "adapter-modules-to-save",
    consequence="the engine refuses the adapter",
    next_step="the head becomes an lm_head delta: " + _CONVERT,
)
def adapter_modules_to_save(files: ModelFiles) -> Iterator[Finding]:
    """No whole module is stored in the adapter."""
    modules = files.adapter_config.get("modules_to_save")
    if modules:
        yield _config_finding(files, f"modules_to_save is {modules}", "modules_to_save")


@RULES.rule(
    "adapter-pattern",
    consequence="the engine drops it without a word and uses one rank and one scale for all modules",
    next_step=_CONVERT,
)
def adapter_pattern(files: ModelFiles) -> Iterator[Finding]:
    """No module has a rank or an alpha of its own."""
    for key in ("rank_pattern", "alpha_pattern"):
        if files.adapter_config.get(key):
            yield _config_finding(files, f"{key} is {files.adapter_config[key]}", key)


# Options of PEFT's LoraConfig that change what the weights mean and that the engine never reads.
_IGNORED_OPTIONS: Mapping[str, tuple[object, ...]] = {
    "fan_in_fan_out": (None, False),
    "lora_bias": (None, False),
    "use_qalora": (None, False),
    "layers_to_transform": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "layer_replication": (None, []),
    "arrow_config": (None, {}),
    "kasa_config": (None, {}),
    "monteclora_config": (None, {}),
    "use_bdlora": (None, {}, False),
}
# Initialisations that leave the adapter right only beside a base model that was changed too.
_BASE_CHANGING = ("pissa", "olora", "loftq", "corda")


@RULES.rule(
    "adapter-option-ignored",
    consequence="the engine never reads it: the delta is applied in another way than in training",
    next_step="merge or retrain to plain LoRA pairs without this option",
)
def adapter_option_ignored(files: ModelFiles) -> Iterator[Finding]:
    """No option of the configuration changes the meaning of the pairs."""
    for key, neutral in _IGNORED_OPTIONS.items():
        value = files.adapter_config.get(key)
        if value not in neutral:
            yield _config_finding(files, f"{key} is {value!r}"[:200], key)


@RULES.rule(
    "adapter-base-changed",
    consequence="the delta was trained beside a changed base model and is added to the unchanged one",
    next_step="convert it with PEFT's save_pretrained(path_initial_model_for_weight_conversion=…)",
)
def adapter_base_changed(files: ModelFiles) -> Iterator[Finding]:
    """The initialisation left the base model as it is."""
    told = files.adapter_config.get("init_lora_weights")
    if isinstance(told, str) and told.lower().startswith(_BASE_CHANGING):
        yield _config_finding(files, f"init_lora_weights is {told!r}"[:200], "init_lora_weights")


def _target_modules(files: ModelFiles) -> list[str]:
    listed = files.adapter_config.get("target_modules")
    if not is_list_of_names(listed):
        raise UnavailableError("target_modules")
    return listed


def is_list_of_names(listed: object) -> TypeGuard[list[str]]:
    """Whether a value of a JSON file is a list of strings."""
    return isinstance(listed, list) and all(isinstance(name, str) for name in listed)


@RULES.rule(
    "adapter-target-modules",
    consequence="what the adapter changes cannot be read from its configuration",
    next_step="list the module suffixes, lm_head among them",
)
def adapter_target_modules(files: ModelFiles) -> Iterator[Finding]:
    """``target_modules`` is a list that covers exactly the modules that have tensors."""
    if not is_list_of_names(files.adapter_config.get("target_modules")):
        yield _config_finding(files, "target_modules is not a list of names", "target_modules")
        return
    listed = _target_modules(files)
    stored = {module.rpartition(".")[2] for module in pairs(files)}
    experts = {suffix for suffix in listed if "experts" in suffix}
    for suffix in sorted(set(listed) - stored - experts - {"lm_head"}):
        yield _config_finding(files, f"{suffix} is listed and has no tensors", "target_modules")
    for suffix in sorted(stored - set(listed) - {"lm_head"}):
        yield _config_finding(files, f"{suffix} has tensors and is not listed", "target_modules")


@RULES.rule(
    "adapter-without-head",
    consequence="slot logits are the base model's: decisions are read from an untrained head",
    next_step=_CONVERT,
)
def adapter_without_head(files: ModelFiles) -> Iterator[Finding]:
    """The adapter holds the decision head, as a delta of lm_head."""
    if "lm_head" not in _target_modules(files):
        yield _config_finding(files, "target_modules has no lm_head", "target_modules")
    elif "lm_head" not in pairs(files):
        yield _tensor_finding(files, "no tensors for lm_head", f"{PEFT_PREFIX}lm_head")


@RULES.rule(
    "adapter-targets-experts",
    consequence="every expert gets LoRA buffers (2.5 GiB on the 26B) and the expert kernel falls back",
    next_step="use an adapter that leaves the routed experts alone",
)
def adapter_targets_experts(files: ModelFiles) -> Iterator[Finding]:
    """No routed expert is adapted."""
    for suffix in _target_modules(files):
        if "experts" in suffix:
            yield _config_finding(files, f"target_modules has {suffix}", "target_modules")
    for name in files.adapter_tensors:
        if ".experts" in name:
            yield _tensor_finding(files, f"{name} adapts an expert", name)


@RULES.rule(
    "adapter-key-unmapped",
    consequence="the engine skips the tensor at debug level: this delta is never applied",
    next_step=f"keys read {PEFT_PREFIX}{TEXT_PREFIX}.layers.N.….lora_A.weight; rename, or " + _CONVERT,
)
def adapter_key_unmapped(files: ModelFiles) -> Iterator[Finding]:
    """Every tensor maps to a module of this model."""
    for tensor, module, _ in _mapped(files):
        if module is None and ".experts" not in tensor.name:
            yield _tensor_finding(files, f"{tensor.name} maps to no module", tensor.name)


@RULES.rule(
    "adapter-key-duplicate",
    consequence="the engine maps several spellings to one module and keeps the tensor that comes last",
    next_step=_CONVERT,
)
def adapter_key_duplicate(files: ModelFiles) -> Iterator[Finding]:
    """No two tensors map to one matrix of one module."""
    first: dict[tuple[str, str], str] = {}
    for tensor, module, side in _mapped(files):
        known = first.setdefault((module, side), tensor.name) if module else tensor.name
        if known != tensor.name:
            yield _tensor_finding(files, f"{tensor.name} is the same matrix as {known}", tensor.name)


@RULES.rule(
    "adapter-pair-incomplete",
    consequence="the engine starts and leaves the module unadapted, without a word",
    next_step=_CONVERT,
)
def adapter_pair_incomplete(files: ModelFiles) -> Iterator[Finding]:
    """Every module has both A and B."""
    for module, pair in pairs(files).items():
        for side in sorted({"A", "B"} - set(pair)):
            key = f"{PEFT_PREFIX}{module}.lora_{side}.weight"
            yield _tensor_finding(files, f"{module} has no lora_{side}", key)


@RULES.rule("adapter-shape", consequence="loading fails or rows land elsewhere", next_step=_CONVERT)
def adapter_shape(files: ModelFiles) -> Iterator[Finding]:
    """A is ``[r, in]`` and B ``[out, r]`` of the module that they change."""
    targets = lora_targets(files)
    rank = files.adapter_config.get("r")
    if type(rank) is not int or not 0 < rank <= MAX_RANK:
        return
    for module, pair in pairs(files).items():
        outputs, inputs = targets[module]
        expected = {"A": (rank, inputs), "B": (outputs, rank)}
        for side, tensor in pair.items():
            if tensor.shape != expected[side]:
                what = f"{tensor.name} is {list(tensor.shape)}, not {list(expected[side])}"
                yield _tensor_finding(files, what, tensor.name)


@RULES.rule(
    "adapter-value-copy",
    consequence="in K=V layers the engine keeps V apart and the delta of its key never reaches the value: "
    "answers drift by nats without an error",
    next_step="copy each such k_proj pair to v_proj: " + _CONVERT,
)
def adapter_value_copy(files: ModelFiles) -> Iterator[Finding]:
    """Where value is key, k_proj and v_proj carry the same pair."""
    found = pairs(files)
    for key_module, value_module in value_copy_modules(files.shape):
        key, value = found.get(key_module, {}), found.get(value_module, {})
        name = f"{PEFT_PREFIX}{value_module}"
        if key and not value:
            yield _tensor_finding(files, f"{key_module} has a delta, {value_module} has none", name)
        elif value and not key:
            yield _tensor_finding(files, f"{value_module} has a delta, {key_module} has none", name)
        elif any(_differ(key[side], value[side]) for side in key.keys() & value.keys()):
            yield _tensor_finding(files, f"{value_module} is no copy of {key_module}", name)


def _differ(left: TensorInfo, right: TensorInfo) -> bool:
    # Another shape is the shape rule's fault, a value that is not finite the next rule's.
    if left.shape != right.shape:
        return False
    first, second = read_float32(left), read_float32(right)
    finite = np.isfinite(first).all() and np.isfinite(second).all()
    return bool(finite and not np.array_equal(first, second))


@RULES.rule("adapter-not-finite", consequence="every answer becomes NaN", next_step=_CONVERT)
def adapter_not_finite(files: ModelFiles) -> Iterator[Finding]:
    """All values are finite."""
    for name, tensor in files.adapter_tensors.items():
        if tensor.dtype in ("BF16", "F16", "F32") and not np.isfinite(read_float32(tensor)).all():
            yield _tensor_finding(files, f"{name} holds NaN or infinity", name)


@RULES.rule(
    "adapter-dtype",
    consequence="the engine cannot cast it to the model's dtype faithfully",
    next_step=_CONVERT,
)
def adapter_dtype(files: ModelFiles) -> Iterator[Finding]:
    """Tensors are floating point."""
    for name, tensor in files.adapter_tensors.items():
        if tensor.dtype not in ("BF16", "F16", "F32"):
            yield _tensor_finding(files, f"{name} is {tensor.dtype}", name)


@RULES.rule(
    "adapter-zero",
    consequence="the module answers as the base model: an adapter that was initialised, never trained",
    next_step="use the trained adapter",
)
def adapter_zero(files: ModelFiles) -> Iterator[Finding]:
    """No pair is a zero delta."""
    for module, lora_a, lora_b in _complete_pairs(files):
        for tensor in (lora_a, lora_b):
            if tensor.dtype in ("BF16", "F16", "F32") and not read_raw(tensor).any():
                yield _tensor_finding(files, f"{tensor.name} is all zero: {module} is unchanged", tensor.name)
