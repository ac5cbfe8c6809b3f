"""Rules on NVFP4: what is declared, what is excluded, and the experts' tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from decideploy.artifacts import files as names
from decideploy.artifacts.exclusion import engine_name, engine_patterns, is_excluded
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.shape import Shape, expert_modules, nvfp4_expert_tensors

RULES = RuleSet()

_ONE_EXPORT = "use config.json and hf_quant_config.json of one export"
_REEXPORT = (
    "export the checkpoint again; every expert needs weight, weight_scale, weight_scale_2 and input_scale"
)


def _declared(files: ModelFiles) -> dict[str, Any]:
    declared = files.json(names.CONFIG).get("quantization_config")
    if not isinstance(declared, dict):
        raise UnavailableError("quantization_config")
    return declared


def _legacy(files: ModelFiles) -> dict[str, Any]:
    section = files.json(names.QUANT_CONFIG).get("quantization")
    if not isinstance(section, dict) or not _is_list_of_strings(section.get("exclude_modules")):
        raise UnavailableError(names.QUANT_CONFIG)
    return section


def _is_list_of_strings(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value))


def _listed(files: ModelFiles) -> tuple[str, str, list[str]]:
    """The exclusion list that the engine uses, with its file and key."""
    if files.json(names.CONFIG).get("quantization_config") is None:
        listed = _legacy(files).get("exclude_modules")
        return names.QUANT_CONFIG, "quantization.exclude_modules", listed or []
    declared = _declared(files)
    nested = declared.get("quantization")
    listed = nested.get("exclude_modules") if isinstance(nested, dict) else declared.get("ignore")
    if not _is_list_of_strings(listed):
        raise UnavailableError("quantization_config.ignore")
    return names.CONFIG, "quantization_config.ignore", listed or []


@RULES.rule(
    "quant-config-malformed",
    consequence="the engine fails while it reads the file, or takes the model for an unquantised one",
    next_step=_ONE_EXPORT,
)
def quant_config_malformed(files: ModelFiles) -> Iterator[Finding]:
    """Both files hold the objects and lists that ModelOpt writes."""
    if files.is_object(names.CONFIG):
        declared = files.json(names.CONFIG).get("quantization_config")
        for key, valid in _forms(declared) if declared is not None else ():
            if not valid:
                yield Finding(what=f"{key} has another form", where=names.CONFIG, key=key)
    if files.is_object(names.QUANT_CONFIG):
        section = files.json(names.QUANT_CONFIG).get("quantization")
        if not isinstance(section, dict):
            yield Finding(what="quantization is missing", where=names.QUANT_CONFIG, key="quantization")
        elif not _is_list_of_strings(section.get("exclude_modules")):
            what, key = "exclude_modules is no list of names", "quantization.exclude_modules"
            yield Finding(what=what, where=names.QUANT_CONFIG, key=key)


def _forms(declared: Any) -> Iterator[tuple[str, bool]]:
    yield "quantization_config", isinstance(declared, dict)
    if isinstance(declared, dict):
        nested = declared.get("quantization")
        yield "quantization_config.quantization", nested is None or isinstance(nested, dict)
        yield "quantization_config.ignore", _is_list_of_strings(declared.get("ignore"))
        groups = declared.get("config_groups")
        yield "quantization_config.config_groups", groups is None or _is_groups(groups)


def _is_groups(groups: Any) -> bool:
    schemes = list(groups.values()) if isinstance(groups, dict) else [None]
    parts = ("weights", "input_activations")
    return all(
        isinstance(scheme, dict) and all(isinstance(scheme.get(part) or {}, dict) for part in parts)
        for scheme in schemes
    )


@RULES.rule(
    "quant-algo",
    consequence="the engine refuses to start or reads packed experts with another algorithm",
    next_step="NVFP4 by ModelOpt and plain bf16 are served; use one of the published checkpoints",
)
def quant_algo_supported(files: ModelFiles) -> Iterator[Finding]:
    """The declared algorithm is NVFP4 by ModelOpt, with groups of 16."""
    declared = files.json(names.CONFIG).get("quantization_config")
    if names.quant_algo(files) not in (None, "NVFP4"):
        what = f"quant_algo is {names.quant_algo(files)!r}"
        yield Finding(what=what, where=names.CONFIG, key="quantization_config.quant_algo")
    if isinstance(declared, dict) and declared.get("quant_method") not in ("modelopt", "modelopt_fp4"):
        what = f"quant_method is {declared.get('quant_method')!r}, not modelopt"
        yield Finding(what=what, where=names.CONFIG, key="quantization_config.quant_method")


@RULES.rule(
    "quant-config-disagrees",
    consequence="the engine silently follows config.json and ignores the other file",
    next_step=_ONE_EXPORT,
)
def quant_config_disagrees(files: ModelFiles) -> Iterator[Finding]:
    """config.json and hf_quant_config.json say the same, where both speak."""
    if not (files.root / names.QUANT_CONFIG).is_file():
        return
    legacy = _legacy(files)
    if files.json(names.CONFIG).get("quantization_config") is None:
        if legacy.get("quant_algo"):
            what = f"hf_quant_config.json says {legacy['quant_algo']}, config.json has no quantization_config"
            yield Finding(what=what, where=names.QUANT_CONFIG, key="quantization.quant_algo")
        return
    declared = _declared(files)
    if str(declared.get("quant_algo")).upper() != str(legacy.get("quant_algo")).upper():
        what = (
            f"quant_algo is {declared.get('quant_algo')!r} in config.json, {legacy.get('quant_algo')!r} here"
        )
        yield Finding(what=what, where=names.QUANT_CONFIG, key="quantization.quant_algo")
    if _is_list_of_strings(declared.get("ignore")) and set(declared.get("ignore") or ()) != set(
        legacy.get("exclude_modules") or ()
    ):
        what = "exclude_modules differs from `ignore` of config.json"
        yield Finding(what=what, where=names.QUANT_CONFIG, key="quantization.exclude_modules")


@RULES.rule(
    "quant-group-size",
    consequence="group scales are applied to the wrong columns",
    next_step="export with groups of 16",
)
def quant_group_size(files: ModelFiles) -> Iterator[Finding]:
    """NVFP4 groups are 16 values, wherever the size is written."""
    if not files.is_nvfp4():
        return
    declared = files.json(names.CONFIG).get("quantization_config") or {}
    groups = declared.get("config_groups") or {}
    if not _is_groups(groups):
        raise UnavailableError("config_groups")
    sizes = {"quantization_config.group_size": declared.get("group_size", 16)}
    for group, scheme in groups.items():
        for part in ("weights", "input_activations"):
            key = f"quantization_config.config_groups.{group}.{part}.group_size"
            sizes[key] = (scheme.get(part) or {}).get("group_size", 16)
    for key, size in sizes.items():
        if size != 16:
            yield Finding(what=f"group_size is {size}", where=names.CONFIG, key=key)
    if (files.root / names.QUANT_CONFIG).is_file() and _legacy(files).get("group_size") != 16:
        what = f"group_size is {_legacy(files).get('group_size')}"
        yield Finding(what=what, where=names.QUANT_CONFIG, key="quantization.group_size")


@RULES.rule(
    "quant-scheme",
    consequence="tools that read the scheme, not the algorithm's name, take the experts for another format",
    next_step=_ONE_EXPORT,
)
def quant_scheme(files: ModelFiles) -> Iterator[Finding]:
    """Where a scheme is spelled out, it is 4-bit floats for weights and activations."""
    groups = (files.json(names.CONFIG).get("quantization_config") or {}) if files.is_nvfp4() else {}
    groups = groups.get("config_groups") or {}
    if not _is_groups(groups):
        raise UnavailableError("config_groups")
    for group, scheme in groups.items():
        for part in ("weights", "input_activations"):
            for key, expected in (("num_bits", 4), ("type", "float")):
                told = (scheme.get(part) or {}).get(key, expected)
                if told != expected:
                    place = f"quantization_config.config_groups.{group}.{part}.{key}"
                    yield Finding(what=f"{key} is {told!r}"[:200], where=names.CONFIG, key=place[:200])


@RULES.rule(
    "quant-elsewhere",
    consequence="the engine quantises by this section too, where quantization_config is absent",
    next_step="declare quantization in quantization_config of config.json alone: remove the other section",
)
def quant_elsewhere(files: ModelFiles) -> Iterator[Finding]:
    """config.json declares quantisation at one place."""
    sections = {"": ("compression_config",), "text_config.": ("quantization_config", "compression_config")}
    for prefix, keys in sections.items():
        section = files.text_config if prefix else files.json(names.CONFIG)
        for key in keys:
            if section.get(key) is not None:
                yield Finding(what=f"{prefix}{key} is set", where=names.CONFIG, key=prefix + key)


@RULES.rule(
    "quant-exclude-key",
    consequence="the engine reads `ignore` there and ignores this list: attention would be read as NVFP4",
    next_step="in config.json the list is called ignore; exclude_modules belongs to hf_quant_config.json",
)
def quant_exclude_key(files: ModelFiles) -> Iterator[Finding]:
    """config.json does not carry its exclusion list under the other file's key."""
    declared = _declared(files)
    if "exclude_modules" in declared and "quantization" not in declared:
        what = "quantization_config has exclude_modules"
        yield Finding(what=what, where=names.CONFIG, key="quantization_config.exclude_modules")


@RULES.rule(
    "quant-kv-cache",
    consequence="the engine turns `auto` into an fp8 KV cache, and nobody measured what accuracy that costs",
    next_step="start the engine with --kv-cache-dtype bfloat16, or remove the key",
    severity="warning",
)
def quant_kv_cache(files: ModelFiles) -> Iterator[Finding]:
    """No file asks for a quantised KV cache."""
    declared = files.json(names.CONFIG).get("quantization_config")
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if isinstance(declared, dict) and declared.get(key):
            yield Finding(what=f"{key} is set", where=names.CONFIG, key=f"quantization_config.{key}")
    if (files.root / names.QUANT_CONFIG).is_file() and _legacy(files).get("kv_cache_quant_algo"):
        what = f"kv_cache_quant_algo is {_legacy(files)['kv_cache_quant_algo']}"
        yield Finding(what=what, where=names.QUANT_CONFIG, key="quantization.kv_cache_quant_algo")


def _bf16_modules(files: ModelFiles) -> Iterator[str]:
    """Engine names of the modules that must stay bf16."""
    for layer in range(files.shape.num_layers):
        yield from _layer_modules(layer)
        if files.shape.enable_moe_block:
            yield f"language_model.model.layers.{layer}.router.proj"
    yield from ("language_model.lm_head", "embed_vision.embedding_projection")
    yield from _vision_linears(files)


def _layer_modules(layer: int) -> Iterator[str]:
    prefix = f"language_model.model.layers.{layer}"
    yield from (f"{prefix}.self_attn.{name}" for name in ("qkv_proj", "o_proj"))
    yield from (f"{prefix}.mlp.{name}" for name in ("gate_up_proj", "down_proj"))


def _vision_linears(files: ModelFiles) -> list[str]:
    matrices = (
        name.removesuffix(".weight")
        for name, tensor in files.tensors.items()
        if name.startswith("model.vision_tower.") and name.endswith(".weight") and len(tensor.shape) == 2
    )
    return sorted({engine_name(name) for name in matrices})


def _expert_layers(shape: Shape) -> Iterator[str]:
    if shape.enable_moe_block:
        yield from (engine_name(f"model.language_model.layers.{n}.experts") for n in range(shape.num_layers))


@RULES.rule(
    "quant-not-excluded",
    consequence="the engine expects packed FP4 weights for a module that is stored in bf16",
    next_step="add the module to `ignore` of config.json and to exclude_modules of hf_quant_config.json",
)
def quant_not_excluded(files: ModelFiles) -> Iterator[Finding]:
    """Attention, dense MLP, router, lm_head and vision projection are excluded, by the engine's matching."""
    if files.is_nvfp4() and "exclude_modules" not in (
        files.json(names.CONFIG).get("quantization_config") or {}
    ):
        where, key, listed = _listed(files)
        patterns = engine_patterns(listed)
        for module in _bf16_modules(files):
            if not is_excluded(module, patterns):
                yield Finding(what=f"{module} is not excluded", where=where, key=key)


@RULES.rule(
    "quant-experts-excluded",
    consequence="the engine makes bf16 experts and cannot load packed ones; the match may be by substring",
    next_step="make the pattern longer, so that it is no part of an expert's name",
)
def quant_experts_excluded(files: ModelFiles) -> Iterator[Finding]:
    """No exclusion hits a layer's routed experts."""
    if files.is_nvfp4():
        where, key, listed = _listed(files)
        patterns = engine_patterns(listed)
        excluded = [module for module in _expert_layers(files.shape) if is_excluded(module, patterns)]
        broad = [pattern for pattern in listed if any(_hits(files, pattern))] if excluded else []
        by = ", ".join(repr(pattern) for pattern in broad[:3])
        for module in excluded:
            yield Finding(what=f"{module} is excluded by {by}", where=where, key=key)


def _hits(files: ModelFiles, pattern: str) -> Iterator[bool]:
    alone = engine_patterns([pattern])
    yield from (is_excluded(module, alone) for module in _expert_layers(files.shape))


@RULES.rule(
    "quant-pattern-unmatched",
    consequence="the engine ignores the pattern; the module that it was meant for may be read as NVFP4",
    next_step="correct the pattern to the checkpoint's module names, or remove it from both files",
    severity="warning",
)
def quant_pattern_unmatched(files: ModelFiles) -> Iterator[Finding]:
    """Each exclusion hits some module of the model."""
    if not files.is_nvfp4():
        return
    where, key, listed = _listed(files)
    modules = _modules(files)
    lines = "\n".join(modules)
    for pattern in listed:
        alone = engine_patterns([pattern])
        # A part of a module's name matches: one search in all names spares the matching one by one.
        if any(part in lines for part in alone if "\n" not in part):
            continue
        if not any(is_excluded(module, alone) for module in modules):
            yield Finding(what=f"{pattern!r} matches no module"[:300], where=where, key=key)


def _modules(files: ModelFiles) -> tuple[str, ...]:
    """Engine names of every module that has tensors; an exclusion may also name an unfused part."""
    stored = {name.rpartition(".")[0] for name in files.tensors if ".experts." not in name}
    parts = (part for layer in range(files.shape.num_layers) for part in _layer_modules(layer))
    named = {engine_name(module) for module in stored} | set(parts) | set(_expert_layers(files.shape))
    return tuple(sorted(named | {"language_model.lm_head"}))


@RULES.rule(
    "quantized-outside-experts",
    consequence="the engine reads packed bytes as bf16, or fails on the shape",
    next_step="use the published checkpoint, where only routed experts are NVFP4",
)
def quantized_outside_experts(files: ModelFiles) -> Iterator[Finding]:
    """Nothing but routed experts is stored quantised."""
    for name, tensor in files.tensors.items():
        scale = name.endswith((".weight_scale", ".weight_scale_2", ".input_scale"))
        if ".experts." not in name and (tensor.dtype in ("U8", "F8_E4M3") or scale):
            yield Finding(what=f"{name} is {tensor.dtype}", where=tensor.path.name, key=name)


@RULES.rule(
    "quant-undeclared",
    consequence="the engine reads packed FP4 bytes as if they were bf16 experts",
    next_step="restore quantization_config in config.json from the published revision",
)
def quant_undeclared(files: ModelFiles) -> Iterator[Finding]:
    """Packed experts are declared."""
    packed = names.packed_experts(files)
    if packed and names.quant_algo(files) is None:
        what = f"{len(packed)} expert tensors are packed, and no file declares it"
        yield Finding(what=what, where=names.CONFIG, key="quantization_config")


@RULES.rule("expert-tensor-missing", consequence="NaN, zero or uninitialised experts", next_step=_REEXPORT)
def expert_tensor_missing(files: ModelFiles) -> Iterator[Finding]:
    """Layers x experts x 3 projections x 4 tensors are all there, under the names that the engine maps."""
    if files.is_nvfp4():
        promised = {names.canonical_expert(name) for name in files.weight_map}
        for name in nvfp4_expert_tensors(files.shape):
            if name not in files.expert_tensors and name not in promised:
                yield Finding(what=f"the checkpoint has no {name}", where=names.INDEX, key=name)


@RULES.rule(
    "expert-tensor-unexpected",
    consequence="the engine skips the tensor without a word: an expert stays unloaded",
    next_step="rename experts as the published model has them: …layers.N.experts.E.gate_proj.weight",
)
def expert_tensor_unexpected(files: ModelFiles) -> Iterator[Finding]:
    """No expert tensor has a name or number that the architecture lacks."""
    expected = nvfp4_expert_tensors(files.shape) if files.is_nvfp4() else {}
    for name, tensor in files.expert_tensors.items() if files.is_nvfp4() else ():
        if name not in expected:
            yield Finding(what=f"{name} maps to no expert", where=tensor.path.name, key=name)


@RULES.rule("expert-tensor-form", consequence="loading fails or weights are misread", next_step=_REEXPORT)
def expert_tensor_form(files: ModelFiles) -> Iterator[Finding]:
    """Expert tensors have ModelOpt's dtypes and packed shapes; a scalar may have shape [1]."""
    for name, (dtype, shape) in nvfp4_expert_tensors(files.shape).items() if files.is_nvfp4() else ():
        tensor = files.expert_tensors.get(name)
        shapes = (shape,) if shape else ((), (1,))
        if tensor and (tensor.dtype != dtype or tensor.shape not in shapes):
            what = f"{name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}"
            yield Finding(what=what, where=tensor.path.name, key=name)


def _scalars(files: ModelFiles, part: str) -> Iterator[tuple[str, str, float]]:
    """``(expert, projection, value)`` of every well-formed scalar named ``part``."""
    for expert, projection, _ in expert_modules(files.shape) if files.is_nvfp4() else ():
        value = files.expert_scalars.get(f"{expert}.{projection}.{part}")
        if value is not None:
            yield expert, projection, value


# The largest weight or activation is 2688 times the scale: beyond, a scale is its own inverse or damaged.
_MIN_SCALE = 1e-10
_MAX_WEIGHT_SCALE = 1.0
_MAX_INPUT_SCALE = 1e5


def _invalid(files: ModelFiles, part: str, highest: float) -> Iterator[Finding]:
    for expert, projection, value in _scalars(files, part):
        if not _MIN_SCALE <= value <= highest:
            name = f"{expert}.{projection}.{part}"
            yield Finding(what=f"{name} is {value}", where=files.expert_tensors[name].path.name, key=name)


@RULES.rule(
    "input-scale",
    consequence="the expert's activations become NaN or zero on W4A4 kernels",
    next_step="calibrate activations again and export",
)
def input_scale(files: ModelFiles) -> Iterator[Finding]:
    """Every static activation scale is finite, above zero and of a plausible size (1e-10 to 1e5)."""
    yield from _invalid(files, "input_scale", _MAX_INPUT_SCALE)


@RULES.rule(
    "weight-scale-2", consequence="the expert's weights become NaN, zero or huge", next_step=_REEXPORT
)
def weight_scale_2(files: ModelFiles) -> Iterator[Finding]:
    """Every tensor scale is finite, above zero and of a plausible size (1e-10 to 1)."""
    yield from _invalid(files, "weight_scale_2", _MAX_WEIGHT_SCALE)


@RULES.rule(
    "gate-up-scale",
    consequence="the engine only warns and uses gate's scale for both: up is scaled wrongly",
    next_step="export with gate and up sharing one weight_scale_2",
)
def gate_up_scale(files: ModelFiles) -> Iterator[Finding]:
    """Gate and up of an expert share one tensor scale."""
    scales: dict[str, dict[str, float]] = {}
    for expert, projection, value in _scalars(files, "weight_scale_2"):
        scales.setdefault(expert, {})[projection] = value
    for expert, values in scales.items():
        gate, up = values.get("gate_proj"), values.get("up_proj")
        sane = all(_MIN_SCALE <= (value or 0) <= _MAX_WEIGHT_SCALE for value in (gate, up))
        if sane and gate != up:
            name = f"{expert}.up_proj.weight_scale_2"
            where = files.expert_tensors[name].path.name
            yield Finding(what=f"gate {gate} and up {up} differ", where=where, key=name)
