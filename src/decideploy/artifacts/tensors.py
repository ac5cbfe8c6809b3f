"""Rules on the checkpoint's tensors: headers, index, names, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Iterator

from decideploy.artifacts import files as names
from decideploy.artifacts.files import ModelFiles
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.shape import EMBEDDING, TEXT_PREFIX, bf16_expert_tensors, dense_tensors

RULES = RuleSet()

_DOWNLOAD = "download the shard again at the pinned revision"
_ONE_REVISION = "use config.json, index and shards of one revision"


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
    consequence="the engine leaves the tensor uninitialised",
    next_step=_ONE_REVISION,
)
def index_tensor_absent(files: ModelFiles) -> Iterator[Finding]:
    """The index promises no tensor that its shard lacks."""
    for tensor, shard in files.weight_map.items():
        if tensor not in files.header(files.root / shard):
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
    declared = files.json(names.INDEX).get("metadata", {}).get("total_size")
    actual = sum(tensor.size_bytes for name, tensor in files.tensors.items() if name in files.weight_map)
    complete = all(name in files.tensors for name in files.weight_map)
    if declared is not None and complete and declared != actual:
        what = f"total_size is {declared}, the tensors are {actual} bytes"
        yield Finding(what=what, where=names.INDEX, key="metadata.total_size")


@RULES.rule(
    "tensor-missing",
    consequence="the engine starts with uninitialised or default weights in its place",
    next_step=_ONE_REVISION,
)
def tensor_missing(files: ModelFiles) -> Iterator[Finding]:
    """Every tensor that the architecture needs, routed experts apart, is in the checkpoint."""
    # Tensors that the index names are the index rule's concern.
    for name in dense_tensors(files.shape):
        if name not in files.tensors and name not in files.weight_map:
            yield Finding(what=f"the checkpoint has no {name}", where=names.INDEX, key=name)


@RULES.rule(
    "tensor-unexpected",
    consequence="the engine skips the tensor without a word; what it was trained for is lost",
    next_step="check that config.json describes this checkpoint (layers, K=V sharing, experts)",
)
def tensor_unexpected(files: ModelFiles) -> Iterator[Finding]:
    """The language model holds no tensor that the architecture has no place for."""
    expected = dense_tensors(files.shape)
    scales = (".weight_scale", ".weight_scale_2", ".input_scale")
    for name, tensor in files.tensors.items():
        dense = name.startswith(TEXT_PREFIX) and ".experts." not in name and not name.endswith(scales)
        if dense and name not in expected:
            yield Finding(what=f"{name} has no place in the model", where=tensor.path.name, key=name)


@RULES.rule(
    "tensor-shape",
    consequence="loading fails, or rows are read as something else",
    next_step=_ONE_REVISION,
)
def tensor_shape(files: ModelFiles) -> Iterator[Finding]:
    """Tensors have the sizes that config.json gives."""
    expected = dense_tensors(files.shape)
    for name, shape in expected.items():
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
    """Everything but quantised experts is bf16."""
    for name in dense_tensors(files.shape):
        tensor = files.tensors.get(name)
        if tensor and tensor.dtype not in ("BF16", "U8"):
            yield Finding(what=f"{name} is {tensor.dtype}, not BF16", where=tensor.path.name, key=name)


@RULES.rule(
    "lm-head-stored",
    consequence="the engine ties lm_head to the embedding and drops the stored one",
    next_step="remove lm_head.weight, or use the checkpoint whose config.json unties it",
)
def lm_head_stored(files: ModelFiles) -> Iterator[Finding]:
    """A tied lm_head is not stored a second time."""
    for name in ("lm_head.weight", "model.lm_head.weight"):
        if name in files.tensors:
            yield Finding(what=f"{name} is stored", where=files.tensors[name].path.name, key=name)


@RULES.rule(
    "lm-head-untied",
    consequence="the head delta was made against the embedding's rows and would be added to others",
    next_step="use the config.json of the published model",
)
def lm_head_untied(files: ModelFiles) -> Iterator[Finding]:
    """lm_head is tied to the embedding, at both places that the engine may read."""
    sections = {"": files.json(names.CONFIG), "text_config.": files.text_config}
    for prefix, section in sections.items():
        if section.get("tie_word_embeddings") is False:
            what = "tie_word_embeddings is false"
            yield Finding(what=what, where=names.CONFIG, key=f"{prefix}tie_word_embeddings")


@RULES.rule(
    "experts-missing",
    consequence="the engine starts with uninitialised experts and answers noise",
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
    if EMBEDDING not in files.tensors:
        raise names.UnavailableError(EMBEDDING)
    return files.tensors[EMBEDDING].shape[0]
