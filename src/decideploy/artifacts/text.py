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
    consequence="the engine refuses a LoRA on lm_head beyond its limit",
    next_step="serve the published vocabulary",
)
def vocab_size(files: ModelFiles) -> Iterator[Finding]:
    """The vocabulary fits the patched engine's limit."""
    if files.shape.vocab_size > MAX_VOCAB_SIZE:
        what = f"vocab_size is {files.shape.vocab_size}, the limit is {MAX_VOCAB_SIZE}"
        yield Finding(what=what, where=names.CONFIG, key="text_config.vocab_size")


@RULES.rule(
    "tokenizer-vocabulary",
    consequence="some token ids have no embedding row: the engine fails on the first prompt with one",
    next_step="use tokenizer and weights of one revision",
)
def tokenizer_vocabulary(files: ModelFiles) -> Iterator[Finding]:
    """Every token of the tokenizer has an embedding row."""
    document = files.json(names.TOKENIZER)
    model: Any = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not vocabulary:
        yield Finding(what="the tokenizer has no vocabulary", where=names.TOKENIZER, key="model.vocab")
        return
    added = {token.get("content"): token.get("id", 0) for token in document.get("added_tokens") or ()}
    largest = max(*vocabulary.values(), *added.values())
    if largest >= embedding_rows(files):
        what = f"the largest id is {largest}, {EMBEDDING} has {embedding_rows(files)} rows"
        yield Finding(what=what, where=names.TOKENIZER, key="model.vocab")


@RULES.rule(
    "calibration",
    consequence="probabilities are divided by a wrong temperature or by none",
    next_step="take calibration.json from the pinned revision or fit it with `decideploy calibrate`",
)
def calibration(files: ModelFiles) -> Iterator[Finding]:
    """Each kind has a finite temperature above zero."""
    per_kind = files.json(names.CALIBRATION).get("per_kind")
    temperatures = per_kind if isinstance(per_kind, dict) else {}
    for kind in KINDS:
        value = temperatures.get(kind)
        if not _is_positive(value):
            yield Finding(what=f"temperature is {value!r}", where=names.CALIBRATION, key=f"per_kind.{kind}")


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


def _is_positive(value: Any) -> bool:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return numeric and math.isfinite(value) and value > 0


@RULES.rule(
    "chat-template-empty",
    consequence="System 2 cannot format a chat and adaptive thinking fails",
    next_step="take chat_template.jinja from the pinned revision",
)
def chat_template_empty(files: ModelFiles) -> Iterator[Finding]:
    """The chat template has content."""
    path = files.root / names.CHAT_TEMPLATE
    if path.is_file() and not path.read_bytes().strip():
        yield Finding(what="the chat template is empty", where=names.CHAT_TEMPLATE)
