"""Rules on the small files: vocabulary, generation defaults and calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from decideploy.artifacts import files as names
from decideploy.artifacts.files import ModelFiles
from decideploy.artifacts.issue import Finding, RuleSet
from decideploy.artifacts.shape import EMBEDDING
from decideploy.artifacts.tensors import embedding_rows
from decideploy.decide.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE

RULES = RuleSet()

ARCHITECTURE = "Gemma4ForConditionalGeneration"
KINDS = ("noul", "score", "choice")
_MAX_TEMPLATE_BYTES = 1_000_000
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
    model = files.json(names.TOKENIZER).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not vocabulary:
        yield Finding(what="the tokenizer has no vocabulary", where=names.TOKENIZER, key="model.vocab")
        return
    ids = [*vocabulary.values(), *_added_tokens(files).values()]
    if not all(type(token_id) is int for token_id in ids):
        yield Finding(what="a token's id is no number", where=names.TOKENIZER, key="model.vocab")
    elif max(ids) >= embedding_rows(files):
        what = f"the largest id is {max(ids)}, {EMBEDDING} has {embedding_rows(files)} rows"
        yield Finding(what=what, where=names.TOKENIZER, key="model.vocab")


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
    """The processor's image sizes are those of the vision tower."""
    document, vision = files.json(names.PROCESSOR_CONFIG), files.json(names.CONFIG).get("vision_config")
    image = document.get("image_processor")
    vision, image = (part if isinstance(part, dict) else {} for part in (vision, image))
    for key in ("patch_size", "pooling_kernel_size"):
        if image.get(key) != vision.get(key):
            what = f"{key} is {image.get(key)!r}, the vision tower's is {vision.get(key)!r}"[:300]
            yield Finding(what=what, where=names.PROCESSOR_CONFIG, key=f"image_processor.{key}")
    told = files.json(names.CONFIG).get("vision_soft_tokens_per_image")
    if told is not None and document.get("image_seq_length") != told:
        what = f"image_seq_length is {document.get('image_seq_length')!r}, config.json has {told!r}"[:300]
        yield Finding(what=what, where=names.PROCESSOR_CONFIG, key="image_seq_length")


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


@RULES.rule(
    "chat-template-empty",
    consequence="System 2 cannot format a chat and adaptive thinking fails",
    next_step="take chat_template.jinja from the pinned revision",
)
def chat_template_empty(files: ModelFiles) -> Iterator[Finding]:
    """The chat template has content."""
    if _chat_template(files) == "":
        yield Finding(what="the chat template is empty", where=names.CHAT_TEMPLATE)


def _chat_template(files: ModelFiles) -> str | None:
    path = files.root / names.CHAT_TEMPLATE
    return (
        path.read_bytes()[:_MAX_TEMPLATE_BYTES].decode("utf-8", "replace").strip() if path.is_file() else None
    )


@RULES.rule(
    "chat-template-tokens",
    consequence="System 2 is prompted in another format than it was trained on, or never asked to think",
    next_step="take chat_template.jinja from the pinned revision",
)
def chat_template_tokens(files: ModelFiles) -> Iterator[Finding]:
    """The chat template writes turns and knows the switch for thinking."""
    template = _chat_template(files)
    for mark in (*TURN_TOKENS, "enable_thinking") if template else ():
        if mark not in (template or ""):
            yield Finding(what=f"the chat template has no {mark}", where=names.CHAT_TEMPLATE, key=mark)


@RULES.rule(
    "chat-template-disagrees",
    consequence="which of the two templates formats a chat depends on the library's release",
    next_step="remove chat_template from tokenizer_config.json",
)
def chat_template_disagrees(files: ModelFiles) -> Iterator[Finding]:
    """The tokenizer's configuration carries no other template."""
    inline = files.json(names.TOKENIZER_CONFIG).get("chat_template")
    template = _chat_template(files)
    if inline is not None and template and (not isinstance(inline, str) or inline.strip() != template):
        yield Finding(what="chat_template is another one", where=names.TOKENIZER_CONFIG, key="chat_template")
