"""Rules on the small files: vocabulary, generation defaults and calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from decideploy.artifacts import files as names
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.shape import EMBEDDING
from decideploy.artifacts.tensors import embedding_rows
from decideploy.decide.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE

RULES = RuleSet()

ARCHITECTURE = "Gemma4ForConditionalGeneration"
KINDS = ("noul", "score", "choice")
# The patched engine's limit for a LoRA on lm_head.
MAX_VOCAB_SIZE = 262_144


@RULES.rule(
    "architecture",
    consequence="the engine loads another model class, where the adapter's names map to nothing",
    next_step="serve a checkpoint of the published architecture",
)
def architecture(files: ModelFiles) -> Iterator[Finding]:
    """config.json names the architecture that the patches and the adapter are for."""
    listed = files.json(names.CONFIG).get("architectures")
    if listed != [ARCHITECTURE]:
        yield Finding(what=f"architectures is {listed}", where=names.CONFIG, key="architectures")


@RULES.rule(
    "vocab-size",
    consequence="the engine refuses a LoRA on lm_head beyond its limit; below it, ids mean other tokens",
    next_step="serve the published vocabulary",
)
def vocab_size(files: ModelFiles) -> Iterator[Finding]:
    """The vocabulary is the published one: the patched engine's limit, and where the verbalizers are."""
    if files.shape.vocab_size != MAX_VOCAB_SIZE:
        what = f"vocab_size is {files.shape.vocab_size}, not {MAX_VOCAB_SIZE}"
        yield Finding(what=what, where=names.CONFIG, key="text_config.vocab_size")


@RULES.rule(
    "tokenizer-vocabulary",
    consequence="some token ids have no embedding row: the engine fails on the first prompt with one",
    next_step="use tokenizer and weights of one revision",
)
def tokenizer_vocabulary(files: ModelFiles) -> Iterator[Finding]:
    """Every token of the tokenizer has an embedding row."""
    vocabulary = _vocabulary(files)
    if not vocabulary:
        yield Finding(what="the tokenizer has no vocabulary", where=names.TOKENIZER, key="model.vocab")
        return
    ids = [*vocabulary.values(), *_added_tokens(files).values()]
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        yield Finding(what="a token's id is no number", where=names.TOKENIZER, key="model.vocab")
    elif max(ids) >= embedding_rows(files):
        what = f"the largest id is {max(ids)}, {EMBEDDING} has {embedding_rows(files)} rows"
        yield Finding(what=what, where=names.TOKENIZER, key="model.vocab")
    elif len(set(vocabulary.values())) < len(vocabulary):
        repeated = len(vocabulary) - len(set(vocabulary.values()))
        what = f"{repeated} tokens have the id of another one"
        yield Finding(what=what, where=names.TOKENIZER, key="model.vocab")


@RULES.rule(
    "tokenizer-added-token",
    consequence="text of a prompt becomes another token than in training, or a control token becomes text",
    next_step="use tokenizer.json and tokenizer_config.json of the pinned revision",
)
def tokenizer_added_token(files: ModelFiles) -> Iterator[Finding]:
    """An added token has one id, its own in the vocabulary, wherever it is listed."""
    vocabulary = _vocabulary(files)
    if vocabulary is None or not all(type(one) is int for one in vocabulary.values()):
        raise UnavailableError(names.TOKENIZER)
    owners = {token_id: token for token, token_id in vocabulary.items()}
    for where, key, content, token_id in _added_places(files):
        known = vocabulary.get(content, token_id)
        owner = owners.get(token_id, content) if type(token_id) is int else content
        if (known, owner) != (token_id, content):
            what = f"{content[:80]!r} is added as {token_id}; it is {known}, and {token_id} is {owner[:80]!r}"
            yield Finding(what=what, where=where, key=key)


def _vocabulary(files: ModelFiles) -> dict[str, Any] | None:
    """Ids of the tokenizer's own tokens, as the file has them; None where it lists none."""
    model = files.json(names.TOKENIZER).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return vocabulary if isinstance(vocabulary, dict) else None


def _added_places(files: ModelFiles) -> Iterator[tuple[str, str, str, Any]]:
    """File, key, content and id of every added token."""
    added = files.json(names.TOKENIZER).get("added_tokens")
    for place, token in enumerate(added if isinstance(added, list) else ()):
        if isinstance(token, dict):
            yield names.TOKENIZER, f"added_tokens[{place}]", str(token.get("content")), token.get("id")
    if files.is_object(names.TOKENIZER_CONFIG):
        decoder = files.json(names.TOKENIZER_CONFIG).get("added_tokens_decoder")
        for told, token in decoder.items() if isinstance(decoder, dict) else ():
            content = token.get("content") if isinstance(token, dict) else None
            token_id = int(told) if told.isascii() and told.isdigit() and len(told) < 10 else told
            yield names.TOKENIZER_CONFIG, f"added_tokens_decoder.{told}"[:100], str(content), token_id


@RULES.rule(
    "tokenizer-setting",
    consequence="whoever uses the file directly cuts, pads or randomly splits prompts",
    next_step="take tokenizer.json from the pinned revision",
)
def tokenizer_setting(files: ModelFiles) -> Iterator[Finding]:
    """The tokenizer neither truncates nor pads, and merges the same way every time."""
    document = files.json(names.TOKENIZER)
    model = document.get("model")
    told = {key: document.get(key) for key in ("truncation", "padding")}
    told["model.dropout"] = model.get("dropout") if isinstance(model, dict) else None
    for key, value in told.items():
        if value:
            yield Finding(what=f"{key} is {value!r}"[:300], where=names.TOKENIZER, key=key)


def _added_tokens(files: ModelFiles) -> dict[str, Any]:
    """Ids of the tokenizer's control tokens by content."""
    added = files.json(names.TOKENIZER).get("added_tokens")
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return {str(token.get("content")): token.get("id") for token in tokens}


def _control_id(files: ModelFiles, token: Any) -> Any:
    """Id of a control token, None when the tokenizer does not know it as one."""
    return _added_tokens(files).get(token) if isinstance(token, str) else None


@RULES.rule(
    "special-token",
    consequence="prompts start or answers end with another token than in training",
    next_step="use tokenizer, config.json and generation_config.json of one revision",
)
def special_token(files: ModelFiles) -> Iterator[Finding]:
    """BOS, EOS and padding have one id in config.json, generation_config.json and the tokenizer."""
    tokens = files.json(names.TOKENIZER_CONFIG)
    for role in ("bos", "eos", "pad"):
        token_id = _control_id(files, tokens.get(f"{role}_token"))
        what = f"{role}_token {tokens.get(f'{role}_token')!r} is token {token_id}"[:200]
        for where, key, told in _told_ids(files, role):
            if token_id is None or token_id not in told:
                yield Finding(what=f"{what}, {key} is {told}"[:300], where=where, key=key)


def _told_ids(files: ModelFiles, role: str) -> Iterator[tuple[str, str, list[Any]]]:
    key = f"{role}_token_id"
    yield names.CONFIG, f"text_config.{key}", _as_list(files.text_config.get(key))
    if files.is_object(names.GENERATION_CONFIG):
        yield names.GENERATION_CONFIG, key, _as_list(files.json(names.GENERATION_CONFIG).get(key))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@RULES.rule(
    "turn-end",
    consequence="System 2 does not stop at the end of its turn and writes on to the budget",
    next_step="take generation_config.json from the pinned revision",
)
def turn_end(files: ModelFiles) -> Iterator[Finding]:
    """The token that ends a turn also ends generation."""
    token = files.json(names.TOKENIZER_CONFIG).get("eot_token")
    token_id = _control_id(files, token)
    listed = _as_list(files.json(names.GENERATION_CONFIG).get("eos_token_id"))
    if token_id is None or token_id not in listed:
        what = f"eot_token {token!r} is token {token_id}, eos_token_id is {listed}"[:300]
        yield Finding(what=what, where=names.GENERATION_CONFIG, key="eos_token_id")


def _is_number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


# What the engine takes as defaults of every request, and the range that it accepts.
_GENERATION_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_k": (-1, MAX_VOCAB_SIZE),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-2, 2),
    "max_new_tokens": (1, 1 << 31),
}


@RULES.rule(
    "generation-value",
    consequence="the engine refuses each request that sends no value of its own, or stops at a word",
    next_step="take generation_config.json from the pinned revision",
)
def generation_value(files: ModelFiles) -> Iterator[Finding]:
    """Sampling defaults are in the engine's ranges, and what ends generation are control tokens."""
    document = files.json(names.GENERATION_CONFIG)
    for key, (low, high) in _GENERATION_RANGES.items():
        value = document.get(key)
        whole = key not in ("top_k", "max_new_tokens") or type(value) is int
        if value is not None and not (_is_number(value, low, high) and whole):
            what = f"{key} is {value!r}, not a number from {low} to {high}"[:300]
            yield Finding(what=what, where=names.GENERATION_CONFIG, key=key)
    control = set(_added_ids(files))
    # No id at all, or none that ends a turn, is another rule's fault.
    for token_id in _as_list(document.get("eos_token_id")):
        if type(token_id) is float or (type(token_id) is int and token_id not in control):
            what = f"{token_id!r} is the id of no control token"
            yield Finding(what=what, where=names.GENERATION_CONFIG, key="eos_token_id")


@RULES.rule(
    "generation-limit",
    consequence="System 2 stops after so many tokens whatever the request allows, or answers in other words",
    next_step="remove the key from generation_config.json",
    severity="warning",
)
def generation_limit(files: ModelFiles) -> Iterator[Finding]:
    """Generation defaults neither limit the length of answers nor penalise words."""
    document = files.json(names.GENERATION_CONFIG)
    if document.get("max_new_tokens") is not None:
        what = f"max_new_tokens is {document['max_new_tokens']!r}"[:200]
        yield Finding(what=what, where=names.GENERATION_CONFIG, key="max_new_tokens")
    penalty = document.get("repetition_penalty", 1.0)
    if penalty not in (None, 1.0):
        what = f"repetition_penalty is {penalty!r}"[:200]
        yield Finding(what=what, where=names.GENERATION_CONFIG, key="repetition_penalty")


def _added_ids(files: ModelFiles) -> list[int]:
    """Ids of the tokenizer's control tokens."""
    return [token_id for token_id in _added_tokens(files).values() if type(token_id) is int]


THOUGHT_TOKENS = ("<|channel>", "<channel|>", "<|think|>")
TURN_TOKENS = ("<|turn>", "<turn|>")


@RULES.rule(
    "thought-channel",
    consequence="System 2 never sees its thought channel open or close: adaptive thinking cannot end",
    next_step="take tokenizer.json from the pinned revision",
)
def thought_channel(files: ModelFiles) -> Iterator[Finding]:
    """The tokens of the thought channel and of turns are control tokens of the tokenizer."""
    known = _added_tokens(files)
    for token in (*THOUGHT_TOKENS, *TURN_TOKENS):
        if type(known.get(token)) is not int:
            what = f"{token} is no control token"
            yield Finding(what=what, where=names.TOKENIZER, key=f"added_tokens.{token}")


# Key of config.json, the name under which the tokenizer's configuration has the same token.
IMAGE_TOKENS = {"image_token_id": "image_token", "boi_token_id": "boi_token", "eoi_token_id": "eoi_token"}


@RULES.rule(
    "image-token",
    consequence="image features land on no position or on text: images are ignored or the request fails",
    next_step="use tokenizer and config.json of one revision",
)
def image_token(files: ModelFiles) -> Iterator[Finding]:
    """The image tokens' ids are the tokenizer's."""
    config, tokens = files.json(names.CONFIG), files.json(names.TOKENIZER_CONFIG)
    for key, name in IMAGE_TOKENS.items():
        token_id = _control_id(files, tokens.get(name))
        if token_id is None or config.get(key) != token_id:
            what = f"{name} {tokens.get(name)!r} is token {token_id}, {key} is {config.get(key)!r}"[:300]
            yield Finding(what=what, where=names.CONFIG, key=key)


@RULES.rule(
    "processor",
    consequence="images are cut into other patches than the vision tower was trained on",
    next_step="use processor_config.json and config.json of one revision",
)
def processor(files: ModelFiles) -> Iterator[Finding]:
    """The processor's image sizes are those of the vision tower, in either of its files."""
    document, vision = files.json(names.PROCESSOR_CONFIG), files.json(names.CONFIG).get("vision_config")
    image = document.get("image_processor")
    if not isinstance(vision, dict):
        raise UnavailableError("vision_config")
    image = image if isinstance(image, dict) else {}
    for key in ("patch_size", "pooling_kernel_size"):
        if image.get(key) != vision.get(key):
            what = f"{key} is {image.get(key)!r}, the vision tower's is {vision.get(key)!r}"[:300]
            yield Finding(what=what, where=names.PROCESSOR_CONFIG, key=f"image_processor.{key}")
    told = files.json(names.CONFIG).get("vision_soft_tokens_per_image")
    if told is not None and document.get("image_seq_length") != told:
        what = f"image_seq_length is {document.get('image_seq_length')!r}, config.json has {told!r}"[:300]
        yield Finding(what=what, where=names.PROCESSOR_CONFIG, key="image_seq_length")
    older = files.json(names.PREPROCESSOR_CONFIG) if files.is_object(names.PREPROCESSOR_CONFIG) else {}
    for key in image.keys() & older.keys():
        if image[key] != older[key]:
            what = f"{key} is {older[key]!r}, processor_config.json has {image[key]!r}"[:300]
            yield Finding(what=what, where=names.PREPROCESSOR_CONFIG, key=key)


@RULES.rule(
    "calibration",
    consequence="probabilities are divided by a wrong temperature or by none",
    next_step="take calibration.json from the pinned revision",
)
def calibration(files: ModelFiles) -> Iterator[Finding]:
    """Each kind has a temperature from 0.01 to 100, in either calibration."""
    for name in (names.CALIBRATION, names.CALIBRATION_GOLD):
        if not files.is_object(name):
            continue
        per_kind = files.json(name).get("per_kind")
        temperatures = per_kind if isinstance(per_kind, dict) else {}
        for kind in KINDS:
            value = temperatures.get(kind)
            if not _is_temperature(value):
                yield Finding(what=f"temperature is {value!r}"[:200], where=name, key=f"per_kind.{kind}")


@RULES.rule(
    "softcap",
    consequence="logits are capped elsewhere than in training: probabilities sharpen or flatten",
    next_step="take config.json from the pinned revision",
)
def softcap(files: ModelFiles) -> Iterator[Finding]:
    """The final logit cap is a number above zero."""
    value = files.text_config.get("final_logit_softcapping")
    if not _is_positive(value):
        what = f"final_logit_softcapping is {value!r}"
        yield Finding(what=what, where=names.CONFIG, key="text_config.final_logit_softcapping")


def _is_temperature(value: Any) -> bool:
    return _is_positive(value) and bool(MIN_TEMPERATURE <= value <= MAX_TEMPERATURE)


def _is_positive(value: Any) -> bool:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    # The upper bound also keeps whole numbers that no float can hold away from isfinite.
    return numeric and 0 < value < 1e30 and math.isfinite(value)
