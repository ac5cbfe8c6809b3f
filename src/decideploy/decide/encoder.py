"""Text to token ids, such that no text of a user becomes a control token.

A control token (BOS, a turn mark, an image placeholder …) in user text would end the state, open a turn or
claim an image. The tokenizer's own switch for this covers only some of them, so they are taken out of the
added tokens, the vocabulary and the merges: what is left cannot produce their ids, whatever the input.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import Tokenizer

from decideploy.decide.documents import read_bytes
from decideploy.decide.head import DecisionHead
from decideploy.decide.slots import SLOT_LABELS
from decideploy.errors import Diagnostic, VerificationError
from decideploy.texts import parse_json

TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
CONFIG: Final = "config.json"
GENERATION_CONFIG: Final = "generation_config.json"
TOKENIZER_TYPES: Final = ("BPE", "WordLevel")
BYTE_TOKENS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))
SPECIAL_TOKEN_LISTS: Final = (
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)


class PromptEncoder:
    """Encode prompts with the tokenizer in ``tokenizer_json``, BOS first.

    ``control_ids`` come on top of the tokens that the file itself marks as special. Raises VerificationError
    when the file cannot be used.
    """

    def __init__(self, tokenizer_json: Path, *, bos_id: int, control_ids: Collection[int] = ()) -> None:
        document, self._ids = _read_tokenizer(tokenizer_json)
        special = {token["id"] for token in document["added_tokens"] if token.get("special")}
        self.bos_id = bos_id
        self.control_ids = frozenset({bos_id, *special, *control_ids}) & frozenset(self._ids.values())
        self._control_tokens = tuple(token for token, id_ in self._ids.items() if id_ in self.control_ids)
        # The library raises bare exceptions for every fault of the file.
        try:
            cleared = without_tokens(document, self.control_ids)
            self._tokenizer = Tokenizer.from_str(json.dumps(cleared))
            self._whole = Tokenizer.from_str(json.dumps(without_tokens(document, ())))
            self._longest_piece = longest_piece(cleared)
        except Exception as error:
            raise _malformed(tokenizer_json, f"holds no tokenizer that can be used: {error}") from error

    @classmethod
    def from_model(cls, model: Path) -> Self:
        """The encoder for the model in the folder ``model``; BOS and control tokens from its files."""
        tokenizer_config = _read_json(model / TOKENIZER_CONFIG)
        config = _read_json(model / CONFIG)
        _, ids = _read_tokenizer(model / TOKENIZER)
        control_ids = set(configured_ids(config))
        if (model / GENERATION_CONFIG).exists():
            control_ids.update(configured_ids(_read_json(model / GENERATION_CONFIG)))
        control_ids.update(ids[name] for name in named_tokens(tokenizer_config) if name in ids)
        bos_id = _bos_id(model, tokenizer_config, config, ids)
        return cls(model / TOKENIZER, bos_id=bos_id, control_ids=control_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` with BOS before them; never truncated, never padded."""
        return [self.bos_id, *self.encode_text(text)]

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a user's ``text``, none of them a control token, and nothing before them."""
        # A batch of one: encode() keeps the interpreter's lock, so that no other thread would run meanwhile.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return list(encoding.ids)

    def encode_markup(self, text: str) -> list[int]:
        """Token ids of a chat template's ``text``, in which control tokens are meant."""
        (encoding,) = self._whole.encode_batch([text], add_special_tokens=False)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, control tokens left out."""
        shown = [token_id for token_id in token_ids if token_id not in self.control_ids]
        return str(self._whole.decode(shown, skip_special_tokens=False))

    def names_control(self, text: str) -> bool:
        """Whether ``text`` spells a control token, which :meth:`encode_markup` would make one."""
        return any(token in text for token in self._control_tokens)

    def fewest_tokens(self, text: str) -> int:
        """How many tokens, BOS included, ``text`` has at least; found from its length alone."""
        if self._longest_piece is None:
            return 1
        return 1 + -(-len(text) // self._longest_piece)

    def token_id(self, token: str) -> int | None:
        """The id of ``token`` in the whole vocabulary, None when it is not a single token."""
        return self._ids.get(token)

    def check_labels(self, head: DecisionHead) -> None:
        """Raise VerificationError unless every verbalizer id is the single token of its slot's label."""
        faults = tuple(
            Diagnostic(
                code="verbalizer-mismatch",
                what=f"slot {slot} reads token {token_id}, but {label!r} is token {self.token_id(label)}",
                where=f"decision_head.json: verbalizer_ids[{slot}]",
                next_step="use the tokenizer and the decision head of one revision of the model",
            )
            for slot, (label, token_id) in enumerate(zip(SLOT_LABELS, head.verbalizer_ids, strict=True))
            if self.token_id(label) != token_id
        )
        if faults:
            raise VerificationError("the decision head does not fit the tokenizer", issues=faults)


def without_tokens(document: Mapping[str, Any], token_ids: Collection[int]) -> dict[str, Any]:
    """The ``tokenizer.json`` document changed so that it cannot produce ``token_ids``.

    One exception: a tokenizer that spells unknown characters neither as bytes nor as byte-level pieces
    needs its unknown token, and keeps it.
    """
    model = dict(document["model"])
    unknown = model.get("unk_token")
    if unknown is not None and model.get("byte_fallback") and model["vocab"].keys() >= BYTE_TOKENS:
        model["unk_token"] = unknown = None
    removed = {token for token, id_ in model["vocab"].items() if id_ in token_ids and token != unknown}
    model["vocab"] = {token: id_ for token, id_ in model["vocab"].items() if token not in removed}
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if removed.isdisjoint(_merge_tokens(pair))]
    return {
        **document,
        "added_tokens": [token for token in document["added_tokens"] if token["id"] not in token_ids],
        "model": model,
        # Added by id here; and input that does not fit is refused, not cut.
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def longest_piece(document: Mapping[str, Any]) -> int | None:
    """The most characters of a text that one token of the ``tokenizer.json`` document stands for.

    None when that is not known: where text may be dropped or shortened, or one token stand for any of it.
    """
    model, added = document["model"], document["added_tokens"]
    bytes_fall_back = model.get("byte_fallback") and model["vocab"].keys() >= BYTE_TOKENS
    if (
        model["type"] != "BPE"
        or not bytes_fall_back
        or any(t.get("lstrip") or t.get("rstrip") for t in added)
    ):
        return None
    if not _keeps_length(document.get("normalizer")) or not _keeps_text(document.get("pre_tokenizer")):
        return None
    pieces = (1 if piece in BYTE_TOKENS else len(piece) for piece in model["vocab"])
    return max(*pieces, *(len(token["content"]) for token in added))


def _keeps_length(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None:
        return True
    replaced = normalizer["pattern"].get("String") if normalizer["type"] == "Replace" else None
    return replaced is not None and len(normalizer["content"]) >= len(replaced)


def _keeps_text(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    return pre_tokenizer is None or (
        pre_tokenizer["type"] == "Split" and pre_tokenizer["behavior"] != "Removed"
    )


def configured_ids(config: Mapping[str, Any]) -> Iterator[int]:
    """Every token id that a ``*_token_id`` or ``*_token_index`` key names, nested sections included."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from configured_ids(value)
        elif key.endswith(("_token_id", "_token_ids", "_token_index")):
            values = value if isinstance(value, list) else [value]
            yield from (id_ for id_ in values if isinstance(id_, int))


def named_tokens(tokenizer_config: Mapping[str, Any]) -> Iterator[str]:
    """Every token that ``tokenizer_config.json`` names as special."""
    for key, value in tokenizer_config.items():
        if key in SPECIAL_TOKEN_LISTS:
            yield from _contents(value.values() if isinstance(value, Mapping) else value or ())
        elif key.endswith("_token"):
            yield from _contents([value])
    decoder = tokenizer_config.get("added_tokens_decoder") or {}
    yield from _contents(token for token in decoder.values() if token.get("special"))


def _contents(values: Any) -> Iterator[str]:
    for value in values:
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            yield content


def _merge_tokens(pair: str | list[str]) -> tuple[str, str, str]:
    left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
    return left, right, left + right


def _vocabulary(document: Mapping[str, Any]) -> dict[str, int]:
    added = {token["content"]: token["id"] for token in document["added_tokens"]}
    ids = {**document["model"]["vocab"], **added}
    if not all(type(id_) is int for id_ in ids.values()):
        raise TypeError("an id is no whole number")
    return ids


def _bos_id(
    model: Path, tokenizer_config: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]
) -> int:
    token = next(_contents([tokenizer_config.get("bos_token")]), None)
    bos_id = ids.get(token) if token is not None else None
    configured = (config.get("text_config") or config).get("bos_token_id", config.get("bos_token_id"))
    if bos_id is None or (configured is not None and configured != bos_id):
        fault = Diagnostic(
            code="bos-mismatch",
            what=f"bos_token {token!r} is token {bos_id}; {CONFIG} says bos_token_id {configured}",
            where=f"{model / TOKENIZER_CONFIG}: bos_token",
            next_step="use the tokenizer and config files of one revision of the model",
        )
        raise VerificationError(fault.what, issues=(fault,))
    return bos_id


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(read_bytes(path))
    except ValueError as error:
        raise _malformed(path, f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _malformed(path, "is not a JSON object")
    return document


def _read_tokenizer(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The document and its whole vocabulary."""
    document = _read_json(path)
    document["added_tokens"] = document.get("added_tokens") or []
    model = document.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    # An unknown type would have its control tokens somewhere that is not searched here.
    if kind not in TOKENIZER_TYPES:
        raise _malformed(path, f"holds a tokenizer of type {kind}; read are {', '.join(TOKENIZER_TYPES)}")
    try:
        return document, _vocabulary(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(path, f"holds no vocabulary that can be read: {error!r}") from error


def _malformed(path: Path, what: str) -> VerificationError:
    fault = Diagnostic(
        code="tokenizer-malformed",
        what=f"{path.name} {what}",
        where=str(path),
        next_step="take the file from the model's pinned revision again",
    )
    return VerificationError(fault.what, issues=(fault,), where=str(path))
