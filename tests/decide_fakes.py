"""Head, calibration, engine and tokenizer of the decide tests, all made in code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.normalizers import Replace

from decideploy.decide import (
    Calibration,
    DecideService,
    DecisionHead,
    Generation,
    Prompt,
    PromptEncoder,
    PromptWriter,
    Reading,
)
from decideploy.decide.schema import BuildInfo, EngineInfo
from decideploy.decide.slots import KIND_RANGES, SLOT_LABELS
from decideploy.decide.thinking import Thinker, find_marks

BOS_ID = 2
FIRST_LABEL_ID = 300
CONTROL_TOKENS = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<|turn>",
    "<turn|>",
    "<|image|>",
    "<|channel>",
    "<channel|>",
)
# Marked as ordinary in tokenizer.json: only the other files name them.
UNMARKED_CONTROL_TOKENS = ("<|image|>", "<|channel>", "<channel|>")
BUILD = BuildInfo(version="0.30.0+cpu.decideploy.1", recipe="cpu", files_sha256="f" * 64, patches=("0001-a",))
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
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
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
        folder / "tokenizer_config.json": {
            "bos_token": "<bos>",
            "extra_special_tokens": ["<|channel>", "<channel|>"],
        },
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
    """Answers ``logprobs`` (by default falling with the slot), raises ``error``, or hangs until cancelled.

    ``answer`` computes the log-probabilities from the prompt and the allowed tokens instead; ``writes`` is
    what the base model generates, cut at the first stop token and at max_tokens.
    """

    logprobs: Mapping[int, float] | None = None
    answer: Callable[[Prompt, Sequence[int]], Mapping[int, float]] | None = None
    writes: Sequence[int] = ()
    error: Exception | None = None
    hang: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    most_running: int = 0

    async def read(
        self,
        prompt: Prompt,
        allowed_token_ids: Sequence[int],
        *,
        use_adapter: bool = True,
        request_id: str,
    ) -> Reading:
        call = {"prompt": list(prompt.token_ids), "allowed": list(allowed_token_ids), "adapter": use_adapter}
        await self._take(call, prompt, request_id)
        logprobs = self.logprobs
        if self.answer is not None:
            logprobs = self.answer(prompt, allowed_token_ids)
        if logprobs is None:
            logprobs = {token_id: -0.7 * index for index, token_id in enumerate(allowed_token_ids)}
        return Reading(logprobs=logprobs, prompt_tokens=len(prompt.token_ids), cached_tokens=3)

    async def generate(
        self, prompt: Prompt, *, max_tokens: int, stop_token_ids: Sequence[int], request_id: str
    ) -> Generation:
        call = {"prompt": list(prompt.token_ids), "max_tokens": max_tokens, "stops": list(stop_token_ids)}
        await self._take(call, prompt, request_id)
        ends = [index for index, token in enumerate(self.writes) if token in stop_token_ids]
        written = tuple(self.writes[: ends[0] + 1] if ends else self.writes)[:max_tokens]
        stopped = bool(written) and written[-1] in stop_token_ids
        return Generation(token_ids=written, stopped=stopped, prompt_tokens=len(prompt.token_ids))

    async def _take(self, call: dict[str, Any], prompt: Prompt, request_id: str) -> None:
        self.calls.append({**call, "images": prompt.images, "request_id": request_id})
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            if self.hang:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


class FakeChatTemplate:
    """A chat template with the marks of the real one, and a greeting that a request may set."""

    variables = frozenset({"enable_thinking", "greeting"})

    def __call__(self, messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
        text = "".join(f"<|turn>{message['role']}\n{message['content']}<turn|>\n" for message in messages)
        return f"<bos>{values.get('greeting', '')}{text}<|turn>model\n"


def make_service(
    encoder: PromptEncoder, engine: FakeEngine, *, max_model_len: int = 4096, **changes: Any
) -> DecideService:
    """A service over ``engine`` with a head without biases and all temperatures 1, unless changed."""
    head = changes.pop("head", None) or make_head(bias=[0.0] * 24)
    writer = PromptWriter(
        encoder=encoder, max_model_len=max_model_len, image_tokens=changes.pop("image_tokens", None)
    )
    marks = find_marks(encoder)
    assert marks is not None
    thinker = Thinker(engine=engine, writer=writer, head=head, chat_template=FakeChatTemplate(), marks=marks)
    defaults: dict[str, Any] = {
        "calibrations": {"default": make_calibration({"noul": 1.0, "choice": 1.0, "score": 1.0})},
        "thinker": thinker,
        "model": "demo",
        "model_sha256": "a" * 64,
        "engine_info": EngineInfo(max_num_seqs=64),
        "build": BUILD,
    }
    return DecideService(engine=engine, writer=writer, head=head, **{**defaults, **changes})
