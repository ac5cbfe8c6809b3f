"""Head, calibration, engine and tokenizer of the decide tests, all made in code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteFallback
from tokenizers.models import BPE
from tokenizers.normalizers import Replace

from decideploy.decide import Calibration, DecisionHead, PromptEncoder
from decideploy.decide.slots import KIND_RANGES, SLOT_LABELS

BOS_ID = 2
FIRST_LABEL_ID = 300
CONTROL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|image|>", "<|channel>")
# Marked as ordinary in tokenizer.json: only the other files name them.
UNMARKED_CONTROL_TOKENS = ("<|image|>", "<|channel>")
PUBLISHED_TEMPERATURES = {"noul": 1.003, "choice": 1.017, "score": 0.999}


def head_document() -> dict[str, Any]:
    return {
        "bias": [0.25 * (slot % 5) - 0.5 for slot in range(24)],
        "verbalizer_ids": [FIRST_LABEL_ID + slot for slot in range(24)],
        "slots": {
            "num_slots": 24,
            "template_version": "bare-v1",
            "ranges": {kind: list(bounds) for kind, bounds in KIND_RANGES.items()},
        },
    }


def make_head(**changes: object) -> DecisionHead:
    return DecisionHead.model_validate_json(json.dumps({**head_document(), **changes}))


def make_calibration(temperatures: Mapping[str, float] = PUBLISHED_TEMPERATURES) -> Calibration:
    return Calibration.model_validate({"temperatures": dict(temperatures), "sha256": "0" * 64})


def write_tokenizer(folder: Path) -> None:
    """A byte-fallback BPE whose merges can spell ``<bos>`` and ``<|turn>`` out of ordinary pieces."""
    vocab = {token: index for index, token in enumerate(CONTROL_TOKENS)}
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [chr(code) for code in range(33, 127)] + ["▁", "\n", "<b", "os", "os>", "<|", "turn>", "<b>"]
    pieces += ["tu", "tur", "turn", "fa", "fal", "fals", "tr", "tru"]
    vocab.update((piece, 400 + index) for index, piece in enumerate(pieces) if piece not in SLOT_LABELS)
    vocab.update((label, FIRST_LABEL_ID + slot) for slot, label in enumerate(SLOT_LABELS))
    merges = [("<", "b"), ("o", "s"), ("os", ">"), ("<b", "os>"), ("<", "|"), ("t", "u"), ("tu", "r")]
    merges += [("tur", "n"), ("turn", ">"), ("<|", "turn>"), ("f", "a"), ("fa", "l"), ("fal", "s")]
    merges += [("fals", "e"), ("t", "r"), ("tr", "u"), ("tru", "e"), ("<b", ">")]
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = Replace(" ", "▁")
    tokenizer.decoder = ByteFallback()
    marked = [token for token in CONTROL_TOKENS if token not in UNMARKED_CONTROL_TOKENS]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in marked])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in UNMARKED_CONTROL_TOKENS])
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_model(folder: Path) -> Path:
    """The files of a model that decisions need; the adapter lies in ``adapter_vllm``."""
    write_tokenizer(folder)
    adapter = folder / "adapter_vllm"
    adapter.mkdir()
    documents = {
        folder / "tokenizer_config.json": {"bos_token": "<bos>", "extra_special_tokens": ["<|channel>"]},
        folder / "config.json": {"image_token_id": 6, "text_config": {"bos_token_id": BOS_ID}},
        folder / "calibration.json": {"per_kind": PUBLISHED_TEMPERATURES},
        adapter / "decision_head.json": head_document(),
    }
    for path, document in documents.items():
        path.write_text(json.dumps(document))
    return folder


def make_encoder(folder: Path) -> PromptEncoder:
    return PromptEncoder.from_model(write_model(folder))


@dataclass
class FakeEngine:
    """Answers ``logprobs`` (by default falling with the slot), raises ``error``, or hangs until cancelled."""

    logprobs: Mapping[int, float] | None = None
    error: Exception | None = None
    hang: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0

    async def read(
        self,
        prompt_token_ids: Sequence[int],
        allowed_token_ids: Sequence[int],
        *,
        use_adapter: bool = True,
        request_id: str,
    ) -> Mapping[int, float]:
        self.calls.append(
            {"prompt": list(prompt_token_ids), "allowed": list(allowed_token_ids), "adapter": use_adapter}
        )
        if self.hang:
            await self._hang()
        if self.error is not None:
            raise self.error
        if self.logprobs is not None:
            return self.logprobs
        return {token_id: -0.7 * index for index, token_id in enumerate(allowed_token_ids)}

    async def _hang(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
