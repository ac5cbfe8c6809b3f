"""Rules on the checkpoint's tensors: headers, index, names, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Iterator

from decideploy.artifacts import files as names
from decideploy.artifacts.files import ModelFiles
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.safetensors_file import TensorInfo, read_raw_rows
from decideploy.artifacts.shape import (
    EMBEDDING,
    VISION_PREFIXES,
    bf16_expert_tensors,
    dense_tensors,
    vision_tensors,
)

RULES = RuleSet()

_DOWNLOAD = "download the shard again at the pinned revision"
_ONE_REVISION = "use config.json, index and shards of one revision"
_OTHER_FLOATS = ("F16", "F32", "F64", "I8", "F8_E5M2", "F8_E8M0")
_LM_HEADS = ("lm_head.weight", "model.lm_head.weight", "model.language_model.lm_head.weight")
# Rows of a stored lm_head that are compared with the embedding's: a retrained one differs in most.
_SAMPLED_ROWS = 64


@RULES.rule(
    "header-malformed",
    consequence="the engine fails after it has started to load, or loads bytes that are not weights",
    next_step=_DOWNLOAD,
)
def header_malformed(files: ModelFiles) -> Iterator[Finding]:
    """Every safetensors file is whole."""
    for path in (*files.shards, files.adapter_weights_path, files.root / names.HEAD):
        if path.is_file() and files.header_fault(path):
            yield Finding(what=files.header_fault(path), where=files.label(path))


@RULES.rule(
    "index-malformed",
    consequence="a loader follows the path out of the folder, or fails",
    next_step=_ONE_REVISION,
)
def index_malformed(files: ModelFiles) -> Iterator[Finding]:
    """The index sends every tensor to a safetensors file of this folder, the decision head apart."""
    if not files.is_object(names.INDEX):
        return
    weight_map = files.json(names.INDEX).get("weight_map")
    for name in names.index_faults(weight_map):
        told = weight_map.get(name) if isinstance(weight_map, dict) else weight_map
        what = f"{name[:100]} points to {told!r}, which is no weight file of the folder"[:300]
        yield Finding(what=what, where=names.INDEX, key=f"weight_map.{name}"[:200])
    metadata = files.json(names.INDEX).get("metadata", {})
    if not isinstance(metadata, dict) or type(metadata.get("total_size", 0)) not in (int, float):
        what = "metadata is no object with a number as total_size"
        yield Finding(what=what, where=names.INDEX, key="metadata")


@RULES.rule(
    "shard-unindexed",
    consequence="the engine skips the file; without an index it would load both and keep whichever came last",
    next_step="remove the file or restore the index that names it",
)
def shard_unindexed(files: ModelFiles) -> Iterator[Finding]:
    """Every safetensors file is a shard of the index, the decision head or the adapter's one file."""
    known = {*(shard.name for shard in files.shards), names.HEAD}
    for path in files.listing:
        stray = path.parent == files.root and path.name not in known
        stray |= path.parent == files.adapter_root and path != files.adapter_weights_path
        if stray and path.suffix == ".safetensors":
            yield Finding(what=f"{path.name} is no shard of the checkpoint", where=files.label(path))


@RULES.rule(
    "tensor-duplicate",
    consequence="the engine loads both, and which one stays depends on the order of files",
    next_step=_ONE_REVISION,
)
def tensor_duplicate(files: ModelFiles) -> Iterator[Finding]:
    """No two shards hold the same tensor, under either exporter's name."""
    seen: dict[str, str] = {}
    for shard in files.shards:
        for name in files.header(shard):
            canonical = names.canonical_expert(name)
            if canonical in seen:
                what = f"{name} is in {seen[canonical]} and in {shard.name}"
                yield Finding(what=what, where=shard.name, key=name)
            seen[canonical] = shard.name


@RULES.rule(
    "shard-missing",
    consequence="loading fails, or the weights of this shard stay uninitialised",
    next_step=_DOWNLOAD,
)
def shard_missing(files: ModelFiles) -> Iterator[Finding]:
    """Every shard that the index names is there."""
    for shard in files.shards if files.weight_map else ():
        if not shard.is_file():
            yield Finding(
                what=f"{shard.name} is missing", where=names.INDEX, key=f"weight_map → {shard.name}"
            )


@RULES.rule(
    "index-tensor-absent",
    consequence="the engine refuses once all shards are read, or serves an expert that it never filled",
    next_step=_ONE_REVISION,
)
def index_tensor_absent(files: ModelFiles) -> Iterator[Finding]:
    """The index promises no tensor that its shard lacks."""
    held = {shard.name: files.header(shard) for shard in files.shards if shard.is_file()}
    for tensor, shard in files.weight_map.items():
        # A shard that is not there is shard-missing's fault.
        if shard in held and tensor not in held[shard]:
            yield Finding(
                what=f"{shard} does not hold {tensor}", where=names.INDEX, key=f"weight_map.{tensor}"
            )


@RULES.rule(
    "index-tensor-unnamed",
    consequence="tools that trust the index, splitters and samplers of shards among them, lose the tensor",
    next_step=_ONE_REVISION,
)
def index_tensor_unnamed(files: ModelFiles) -> Iterator[Finding]:
    """The index names every tensor of its shards."""
    if files.weight_map:
        for name, tensor in files.tensors.items():
            # A tensor that is there twice is named once: tensor-duplicate.
            if name not in files.weight_map:
                yield Finding(what=f"the index does not name {name}", where=tensor.path.name, key=name)


@RULES.rule(
    "index-total-size",
    consequence="memory planned from the index is wrong",
    next_step=_ONE_REVISION,
    severity="warning",
)
def index_total_size(files: ModelFiles) -> Iterator[Finding]:
    """The index's total is the sum of the tensors."""
    if not files.weight_map:
        return
    metadata = files.json(names.INDEX).get("metadata")
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    actual = sum(tensor.size_bytes for name, tensor in files.tensors.items() if name in files.weight_map)
    complete = all(name in files.tensors for name in files.weight_map)
    if type(declared) in (int, float) and complete and declared != actual:
        what = f"total_size is {declared}, the tensors are {actual} bytes"
        yield Finding(what=what, where=names.INDEX, key="metadata.total_size")


@RULES.rule(
    "tensor-missing",
    consequence="the engine refuses once all shards are read, or runs on what its memory held",
    next_step=_ONE_REVISION,
)
def tensor_missing(files: ModelFiles) -> Iterator[Finding]:
    """Every tensor that the architecture needs, routed experts apart, is in the checkpoint."""
    # Tensors that the index names are the index rule's concern.
    for name in _dense(files):
        if name not in files.tensors and name not in files.weight_map:
            yield Finding(what=f"the checkpoint has no {name}", where=names.INDEX, key=name)


def _dense(files: ModelFiles) -> dict[str, tuple[int, ...]]:
    """Shapes of the language model without its routed experts, and of the vision tower where it is told."""
    vision = files.vision_or_faults
    seen = {} if isinstance(vision, tuple) else vision_tensors(vision, files.shape.hidden_size)
    return {**dense_tensors(files.shape), **seen}


@RULES.rule(
    "tensor-unexpected",
    consequence="the engine skips the tensor without a word; what it was trained for is lost",
    next_step="check that config.json describes this checkpoint (layers, K=V sharing, experts)",
)
def tensor_unexpected(files: ModelFiles) -> Iterator[Finding]:
    """The checkpoint holds no tensor that the architecture has no place for, the vision tower apart."""
    expected = dense_tensors(files.shape)
    for name, tensor in files.tensors.items():
        if name not in expected and not _has_other_rules(name):
            yield Finding(what=f"{name} has no place in the model", where=tensor.path.name, key=name)


def _has_other_rules(name: str) -> bool:
    # Scales outside the experts are quantized-outside-experts' fault.
    scales = (".weight_scale", ".weight_scale_2", ".input_scale")
    return (
        ".experts." in name or name.startswith(VISION_PREFIXES) or name.endswith(scales) or name in _LM_HEADS
    )


@RULES.rule(
    "tensor-shape",
    consequence="loading fails, or rows are read as something else",
    next_step=_ONE_REVISION,
)
def tensor_shape(files: ModelFiles) -> Iterator[Finding]:
    """Tensors have the sizes that config.json gives."""
    for name, shape in _dense(files).items():
        tensor = files.tensors.get(name)
        # A packed tensor has another shape because it is packed: see quantized-outside-experts.
        if tensor and tensor.dtype != "U8" and tensor.shape != shape:
            what = f"{name} is {list(tensor.shape)}, config.json makes it {list(shape)}"
            yield Finding(what=what, where=tensor.path.name, key=name)


@RULES.rule(
    "tensor-dtype",
    consequence="the engine casts it to the model's dtype: memory and answers differ from what was measured",
    next_step="use the published bf16 tensors",
)
def tensor_dtype(files: ModelFiles) -> Iterator[Finding]:
    """Everything but quantised experts is bf16, the vision tower included."""
    dense = dense_tensors(files.shape)
    for name, tensor in files.tensors.items():
        # Bytes are packed weights or their scales: quantized-outside-experts.
        vision = tensor.dtype in _OTHER_FLOATS and name.startswith(VISION_PREFIXES)
        if vision or (name in dense and tensor.dtype not in ("BF16", "U8", "F8_E4M3")):
            yield Finding(what=f"{name} is {tensor.dtype}, not BF16", where=tensor.path.name, key=name)


@RULES.rule(
    "lm-head-stored",
    consequence="the engine ties lm_head to the embedding and drops the stored one, whatever it holds",
    next_step="remove lm_head.weight, or use the checkpoint whose config.json unties it",
)
def lm_head_stored(files: ModelFiles) -> Iterator[Finding]:
    """A tied lm_head is not stored, or once as a copy of the embedding."""
    # A packed one is quantized-outside-experts' fault.
    held = (files.tensors[name] for name in _LM_HEADS if name in files.tensors)
    stored = [tensor for tensor in held if tensor.dtype not in ("U8", "F8_E4M3")]
    for tensor in stored[1:]:
        what = f"{tensor.name} is stored beside {stored[0].name}"
        yield Finding(what=what, where=tensor.path.name, key=tensor.name)
    table = files.tensors.get(EMBEDDING)
    for tensor in stored[:1] if table else ():
        if table and not _same_rows(tensor, table):
            what = f"{tensor.name} is stored and is no copy of {EMBEDDING}"
            yield Finding(what=what, where=tensor.path.name, key=tensor.name)


def _same_rows(left: TensorInfo, right: TensorInfo) -> bool:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    step = max(1, left.shape[0] // _SAMPLED_ROWS) if left.shape else 1
    rows = range(0, left.shape[0] if left.shape else 0, step)
    pairs = ((read_raw_rows(left, row, row + 1), read_raw_rows(right, row, row + 1)) for row in rows)
    return all((first == second).all() for first, second in pairs)


@RULES.rule(
    "lm-head-untied",
    consequence="the head delta was made against the embedding's rows and would be added to others",
    next_step="use the config.json of the published model",
)
def lm_head_untied(files: ModelFiles) -> Iterator[Finding]:
    """lm_head is tied to the embedding, at both places that the engine may read."""
    sections = {"": files.json(names.CONFIG), "text_config.": files.text_config}
    for prefix, section in sections.items():
        told = section.get("tie_word_embeddings", True)
        if told is not True:
            what = f"tie_word_embeddings is {told!r}"[:200]
            yield Finding(what=what, where=names.CONFIG, key=f"{prefix}tie_word_embeddings")


@RULES.rule(
    "experts-missing",
    consequence="the engine starts with experts that it never filled and answers NaN or noise",
    next_step="use shards whose expert names are those of the published model",
)
def experts_missing(files: ModelFiles) -> Iterator[Finding]:
    """An unquantised checkpoint has both fused expert tensors of every layer, in bf16 and in shape."""
    # Packed experts of an undeclared quantisation are quant-undeclared's fault.
    if names.quant_algo(files) is not None or names.packed_experts(files):
        return
    for name, (dtype, shape) in bf16_expert_tensors(files.shape).items():
        tensor = files.tensors.get(name)
        if tensor is None and name not in files.weight_map:
            yield Finding(what=f"the checkpoint has no {name}", where=names.INDEX, key=name)
        elif tensor is not None and (tensor.dtype, tensor.shape) != (dtype, shape):
            what = f"{name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}"
            yield Finding(what=what, where=tensor.path.name, key=name)


def embedding_rows(files: ModelFiles) -> int:
    """Rows of the embedding, the vocabulary as the weights have it."""
    if EMBEDDING not in files.tensors or not files.tensors[EMBEDDING].shape:
        raise names.UnavailableError(EMBEDDING)
    return files.tensors[EMBEDDING].shape[0]
