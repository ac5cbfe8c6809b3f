"""Rules on the presence and form of files, before anything in them is understood."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from decideploy.artifacts import files as names
from decideploy.artifacts.files import ModelFiles
from decideploy.artifacts.issue import Finding, RuleSet

RULES = RuleSet()

REQUIRED = (
    names.CONFIG,
    names.GENERATION_CONFIG,
    names.TOKENIZER,
    names.TOKENIZER_CONFIG,
    names.CHAT_TEMPLATE,
    names.PROCESSOR_CONFIG,
    names.CALIBRATION,
    names.JUDGE_CONFIG,
    names.HEAD,
)
OPTIONAL = (names.INDEX, names.QUANT_CONFIG, names.CALIBRATION_GOLD, names.PREPROCESSOR_CONFIG)


def _required(files: ModelFiles) -> tuple[Path, ...]:
    adapter = (files.adapter_config_path, files.adapter_weights_path, files.decision_head_path)
    return (*(files.root / name for name in REQUIRED), *adapter)


@RULES.rule(
    "file-missing",
    consequence="the engine does not start, or starts without what this file decides",
    next_step="download the pinned revision again; adapter_vllm/ is made with `decideploy convert-adapter`",
)
def file_missing(files: ModelFiles) -> Iterator[Finding]:
    """Every file that serving reads is there."""
    for path in _required(files):
        if not path.is_file():
            yield Finding(what=f"{files.label(path)} is missing", where=files.label(path))
    if not any((files.root / name).is_file() for name in (names.INDEX, names.SINGLE_SHARD)):
        yield Finding(what="the checkpoint has neither index nor weights", where=names.INDEX)


@RULES.rule(
    "json-malformed",
    consequence="whatever reads this file fails or falls back to defaults",
    next_step="download the file again at the pinned revision",
)
def json_malformed(files: ModelFiles) -> Iterator[Finding]:
    """Every JSON file that is there holds an object."""
    optional = (files.root / name for name in OPTIONAL)
    for path in (*_required(files), *optional):
        if path.suffix == ".json" and path.is_file() and files.json_fault(path):
            yield Finding(what=f"{path.name} {files.json_fault(path)}", where=files.label(path))


# What `from_pretrained` and torch.load would unpickle, and so run.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")


@RULES.rule(
    "pickle-file",
    consequence="whoever loads it runs the code in it, and a loader may prefer it to the safetensors",
    next_step="remove the file; weights belong into safetensors",
)
def pickle_file(files: ModelFiles) -> Iterator[Finding]:
    """No file of the model is a pickle."""
    for path in files.listing:
        if path.suffix.lower() in PICKLES:
            yield Finding(what=f"{path.name} may hold a pickle", where=files.label(path))


@RULES.rule(
    "symlink-escape",
    consequence="the bytes that run are not the folder's: a manifest or a copy of the folder misses them",
    next_step="copy the file into the folder; only links into the hub cache's own blobs/ are followed",
)
def symlink_escape(files: ModelFiles) -> Iterator[Finding]:
    """Links stay inside the folder, or point to the blobs of a hub snapshot."""
    root = files.root.resolve()
    allowed = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    for path in files.listing:
        target = _target(path) if path.is_symlink() else path
        if target is None:
            yield Finding(what=f"{path.name} is a link in a loop", where=files.label(path))
        elif target is not path and not any(target.is_relative_to(base) for base in allowed):
            yield Finding(what=f"{path.name} links out of the folder", where=files.label(path))


def _target(link: Path) -> Path | None:
    # A loop is an error of another class in each release of Python.
    try:
        return link.resolve()
    except (OSError, RuntimeError):
        return None


@RULES.rule(
    "remote-code",
    consequence="the engine refuses, or with --trust-remote-code runs the checkpoint's own Python",
    next_step="remove auto_map: the engine knows the architecture",
)
def remote_code(files: ModelFiles) -> Iterator[Finding]:
    """No configuration asks for code from the checkpoint."""
    configurations = (names.CONFIG, names.TOKENIZER_CONFIG, names.PROCESSOR_CONFIG, names.PREPROCESSOR_CONFIG)
    for name in configurations:
        document = files.json(name) if files.is_object(name) else {}
        sections = {f"{key}.": value for key, value in document.items() if isinstance(value, dict)}
        for prefix, section in ({"": document} | sections).items():
            if section.get("auto_map"):
                yield Finding(what="auto_map is set", where=name, key=f"{prefix}auto_map")


@RULES.rule(
    "config-key",
    consequence="the engine takes a default of another model and loads wrong sizes",
    next_step="take config.json from the model's pinned revision",
)
def config_key(files: ModelFiles) -> Iterator[Finding]:
    """config.json has every size that the engine derives shapes from."""
    if not isinstance(files.json(names.CONFIG).get("text_config"), dict):
        yield Finding(what="text_config is missing", where=names.CONFIG, key="text_config")
    elif isinstance(files.shape_or_faults, tuple):
        for key in files.shape_or_faults:
            what = f"{key} is missing or is not what it must be"
            yield Finding(what=what, where=names.CONFIG, key=f"text_config.{key}")
    if isinstance(files.vision_or_faults, tuple):
        for key in files.vision_or_faults:
            what = f"{key} is missing or is not what it must be"
            yield Finding(what=what, where=names.CONFIG, key=f"vision_config.{key}")
