"""Train the demo model that decides sensibly, and pack it as the package's data.

    python scripts/train_demo_model.py OUT

Two stages, on one CPU thread: first the base model, as a language model of chat turns that decide with and
without a thought; then, on the frozen base, System 1: a LoRA adapter and a float32 head that read bare
prompts. OUT gets ``trained.safetensors.xz`` and ``training.jsonl``, the log.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from decideploy.calibrate import Scored, expected_calibration_error, fit_kind, probabilities_at
from decideploy.calibrate.run import FOLDS, MIN_EXAMPLES
from decideploy.decide import render
from decideploy.decide.slots import CHOICE_LETTERS, KIND_RANGES, KINDS, Kind
from decideploy.decide.thinking import THOUGHT_LABEL, user_segments
from decideploy.demo import architecture, tokenizer, trained
from decideploy.demo.corpus import Decision, Part, decisions, exercises
from decideploy.demo.weights import TEXT_PREFIX

SEED = 7
SYSTEM1_STEPS = 700
THREADS = 1
LOG_EVERY = 50
COMMON = 0.35
"""A first component that all tokens share: projections have no bias, and position alone needs one."""
TOKENS_A_BATCH = 1600
POOL = 48
"""So many batches are sorted by length at once: few padding tokens, and still any order."""
# What a token of the base model's documents is part of; each sort weighs the same in the loss.
SORTS = ("text", "thought", "letter", "label", "exercise")


@dataclass(frozen=True, slots=True)
class Mix:
    """One round of the base model's training.

    First exercises alone; then of 20 documents ``bare`` prompts, ``chats`` with a thought, 2 plain texts, and
    exercises for the rest.
    """

    steps: int
    rate: float
    exercises_first: int
    bare: int
    chats: int


ROUNDS = (
    Mix(steps=2700, rate=1.5e-3, exercises_first=6000, bare=10, chats=4),
    Mix(steps=2200, rate=1e-3, exercises_first=0, bare=15, chats=2),
    Mix(steps=2000, rate=1e-3, exercises_first=0, bare=15, chats=2),
)


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids, and from which place on they are an answer; ``answer`` is their number for plain text.

    Of a bare prompt, ``asked`` is the place where the question has been read, ``expected`` the last token
    of what it asks for, and ``options`` are the places where each option has been read, the right one first.
    """

    ids: list[int]
    answer: int
    slot: int = -1
    exercise: bool = False
    asked: int = -1
    expected: int = -1
    options: tuple[int, ...] = ()


def text_config(rows: int) -> Gemma4TextConfig:
    """The model's own configuration over ``rows`` vocabulary rows."""
    config = architecture.text_config() | trained.TEXT_CONFIG
    config |= {"vocab_size": rows, "vocab_size_per_layer_input": rows, "dtype": "float32"}
    made = Gemma4TextConfig(**config)
    made._attn_implementation = "sdpa"
    made._experts_implementation = "eager"
    return made


class Encoder:
    """Documents in compact ids: the place of a token's id among the used ones."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_str(json.dumps(tokenizer.tokenizer_json(trained.words())))
        self.used = tokenizer.used_ids(trained.words())
        self._place = {token_id: place for place, token_id in enumerate(self.used)}
        self.pad = self._place[architecture.PAD_ID]
        self._bos = self._place[architecture.BOS_ID]
        (self._newline,) = self.ids("\n")
        self.labels = [self._place[token_id] for token_id in tokenizer.VERBALIZERS.values()]

    def ids(self, text: str, *, bos: bool = False) -> list[int]:
        """``text`` with the control tokens that it spells."""
        encoded = self._tokenizer.encode(text, add_special_tokens=bos).ids
        return [self._place[token_id] for token_id in encoded]

    def bare(self, decision: Decision, *, answered: bool = False) -> Document:
        """System 1's prompt, and where it is ``answered`` the label of the slot behind it."""
        ids, ends = [self._bos], list[int]()
        for line in render(decision.request).split("\n"):
            ids += [*([self._newline] if ends else []), *self.ids(line)]
            ends.append(len(ids) - 1)
        slot = KIND_RANGES[decision.kind][0] + decision.label
        lettered = ends[4:-1] if decision.kind == "choice" else []
        right = lettered.pop(decision.label) if lettered else -1
        found = decision.answer if decision.kind != "noul" else decision.evidence
        return Document(
            ids + ([self.labels[slot]] if answered else []),
            len(ids),
            slot=slot,
            asked=ends[3],
            expected=self.ids(" " + found.removesuffix(".").removesuffix(" of 5"))[-1],
            options=(right, *lettered) if lettered else (),
        )

    def chat(self, decision: Decision, *, thinks: bool) -> Document:
        """System 2's prompt, its thought where it ``thinks``, and the letter of the answer."""
        asked = user_segments(decision.request, decision.options)[0]
        system = "<|turn>system\n<|think|>\n<turn|>\n" if thinks else ""
        prompt = f"<bos>{system}<|turn>user\n{asked}<turn|>\n<|turn>model\n"
        thought = f"{decision.evidence} The answer is {decision.answer}." if thinks else ""
        if not thinks:
            prompt += f"<|channel>{THOUGHT_LABEL}<channel|>"
        answer = f"<|channel>{THOUGHT_LABEL}{thought}<channel|>" if thinks else ""
        start = self.ids(prompt)
        return Document(start + self.ids(f"{answer}{CHOICE_LETTERS[decision.label]}<turn|>"), len(start))

    def exercise(self, text: str, answers: str) -> Document:
        """A text and the answers to what is looked up in it."""
        start = self.ids(text, bos=True)
        return Document(start + self.ids(answers), len(start), exercise=True)

    def plain(self, decision: Decision) -> Document:
        """Text without an answer."""
        ids = self.ids(render(decision.request), bos=True)
        return Document(ids, len(ids))


def backbone_documents(encoder: Encoder, seed: int, mix: Mix) -> Iterator[Document]:
    """First exercises alone, then twenty documents of ``mix`` again and again.

    Plain text shows the held-out words too, in no question that has an answer.
    """
    asked = decisions(seed, phrases=Part.TRAIN, words=Part.TRAIN)
    unasked = [decisions(seed + 1, phrases=Part.TRAIN, words=words) for words in Part]
    looked_up = exercises(seed)
    for text, answers in islice(looked_up, mix.exercises_first):
        yield encoder.exercise(text, answers)
    for place in cycle(range(60)):
        if place % 20 < mix.bare:
            yield encoder.bare(next(asked), answered=True)
        elif place % 20 < mix.bare + mix.chats:
            yield encoder.chat(next(asked), thinks=True)
        elif place % 20 < 18:
            yield encoder.exercise(*next(looked_up))
        else:
            yield encoder.plain(next(unasked[place % 3]))


def system1_documents(encoder: Encoder, seed: int) -> Iterator[Document]:
    """Bare prompts and their slots."""
    for decision in decisions(seed, phrases=Part.TRAIN, words=Part.TRAIN):
        yield encoder.bare(decision)


def batches(documents: Iterator[Document], seed: int) -> Iterator[list[Document]]:
    """Documents of like length, about TOKENS_A_BATCH with their padding."""
    order = np.random.default_rng(seed)
    while True:
        pool: list[Document] = []
        tokens = 0
        while tokens < POOL * TOKENS_A_BATCH:
            pool.append(next(documents))
            tokens += len(pool[-1].ids)
        pool.sort(key=lambda document: len(document.ids))
        made: list[list[Document]] = [[]]
        for document in pool:
            if made[-1] and (len(made[-1]) + 1) * len(document.ids) > TOKENS_A_BATCH:
                made.append([])
            made[-1].append(document)
        for place in order.permutation(len(made)):
            yield made[place]


def padded(documents: Sequence[Document], pad: int) -> Tensor:
    """Ids ``[documents, longest]``; padding stands where causal attention never looks from real tokens."""
    longest = max(len(document.ids) for document in documents)
    return torch.tensor([document.ids + [pad] * (longest - len(document.ids)) for document in documents])


class Balance:
    """The load-balancing loss of W. Fedus et al., "Switch Transformers", 2022, over every router."""

    def __init__(self, model: nn.Module) -> None:
        self._losses: list[Tensor] = []
        for name, module in model.named_modules():
            if name.endswith(".router"):
                module.register_forward_hook(self._look)

    def _look(self, _module: nn.Module, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        probabilities, _, chosen = output
        share = functional.one_hot(chosen, probabilities.shape[-1]).float().mean((0, 1))
        self._losses.append(probabilities.shape[-1] * (share * probabilities.mean(0)).sum())

    def take(self) -> Tensor:
        """The mean over the layers since the last call; 1 is balance."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean()


class BackboneLoss:
    """Language-model loss: the sum of the means over each sort of token; of text a quarter is looked at."""

    def __init__(self, model: Gemma4ForCausalLM, encoder: Encoder) -> None:
        self._model, self._pad = model, encoder.pad
        self._balance = Balance(model)
        self.steps = Steps()
        self._generator = torch.Generator().manual_seed(SEED)
        # One row stands for all unused ones: it takes part in the softmax as often as there are.
        self._times = torch.zeros(len(encoder.used) + 1)
        self._times[-1] = math.log(architecture.VOCAB_SIZE - len(encoder.used))

    def __call__(self, documents: Sequence[Document]) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch, and what to log of it."""
        ids = padded(documents, self._pad)
        read = self._model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        hidden = read.last_hidden_state
        rows, places, sorts = self._looked_at(documents)
        logits = capped(functional.linear(hidden[rows, places], self._model.lm_head.weight)) + self._times
        targets = ids[rows, places + 1]
        losses = functional.cross_entropy(logits, targets, reduction="none")
        hits = (logits.argmax(-1) == targets).float()
        loss, figures = self.steps(read.hidden_states, documents, self._model.lm_head.weight)
        loss = loss + 0.01 * self._balance.take()
        for sort, name in enumerate(SORTS):
            mine = sorts == sort
            if mine.any():
                loss = loss + losses[mine].mean()
                figures[name] = losses[mine].mean().item()
                figures[f"{name} right"] = hits[mine].mean().item()
        return loss, figures

    def _looked_at(self, documents: Sequence[Document]) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and places whose next token counts, and its place in SORTS."""
        spans = [
            (row, place, _sort(document, place + 1))
            for row, document in enumerate(documents)
            for place in range(len(document.ids) - 1)
        ]
        rows, places, sorts = (torch.tensor(column) for column in zip(*spans, strict=True))
        kept = (sorts > 0) | (torch.rand(len(sorts), generator=self._generator) < 0.25)
        return rows[kept], places[kept], sorts[kept]


def _sort(document: Document, place: int) -> int:
    if place < document.answer:
        return 0
    if document.exercise:
        return 4
    if document.slot >= 0:
        return 3
    return 2 if place + 2 == len(document.ids) else 1


class Steps(nn.Module):
    """Losses half-way, which say what to find out on the way to a label; nothing of them is kept.

    Where the question has been read, the fourth layer shall know the last token of what it asks for; where an
    option has been read, the fifth shall know whether it is the right one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answer = nn.Linear(architecture.HIDDEN_SIZE, architecture.HIDDEN_SIZE, bias=False)
        self._option = nn.Linear(architecture.HIDDEN_SIZE, 1)

    def __call__(
        self, layers: Sequence[Tensor], documents: Sequence[Document], rows_of_tokens: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """The sum of both losses, and what to log of them."""
        bare = [(row, document) for row, document in enumerate(documents) if document.asked >= 0]
        if not bare:
            return layers[0].new_zeros(()), {}
        rows = torch.tensor([row for row, _ in bare])
        asked = layers[4][rows, torch.tensor([document.asked for _, document in bare])]
        logits = functional.linear(self._answer(unit(asked)), rows_of_tokens)
        expected = torch.tensor([document.expected for _, document in bare])
        loss = functional.cross_entropy(logits, expected)
        figures = {"asked right": (logits.argmax(-1) == expected).float().mean().item()}
        ends = [(row, place, place == d.options[0]) for row, d in bare for place in d.options]
        if ends:
            rows, places, right = (torch.tensor(column) for column in zip(*ends, strict=True))
            guess = self._option(unit(layers[5][rows, places]))[:, 0]
            loss = loss + functional.binary_cross_entropy_with_logits(guess, right.float())
            figures["option right"] = ((guess > 0) == right).float().mean().item()
        return loss, figures


def unit(values: Tensor) -> Tensor:
    """Vectors of root mean square 1."""
    return functional.rms_norm(values, values.shape[-1:])


class System1Loss:
    """Cross-entropy of the right slot among those of its kind."""

    def __init__(self, model: nn.Module, head: nn.Linear, encoder: Encoder) -> None:
        self._model, self._head, self._pad = model, head, encoder.pad

    def __call__(self, documents: Sequence[Document]) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch, and what to log of it."""
        logits = slot_logits(self._model, self._head, documents, self._pad)
        slots = torch.tensor([document.slot for document in documents])
        logits = logits + outside(slots)
        loss = functional.cross_entropy(logits, slots)
        return loss, {"slot": loss.item(), "slot right": (logits.argmax(-1) == slots).float().mean().item()}


def slot_logits(model: nn.Module, head: nn.Linear, documents: Sequence[Document], pad: int) -> Tensor:
    """Capped slot logits ``[documents, 24]`` at the last token of each prompt."""
    ids = padded(documents, pad)
    hidden = model(input_ids=ids, use_cache=False).last_hidden_state
    last = hidden[torch.arange(len(documents)), torch.tensor([len(d.ids) - 1 for d in documents])]
    return capped(head(last))


def outside(slots: Tensor) -> Tensor:
    """Minus infinity at every slot of another kind than that of ``slots``."""
    mask = torch.full((len(slots), architecture.NUM_SLOTS), -torch.inf)
    for start, end in KIND_RANGES.values():
        inside = (slots >= start) & (slots < end)
        mask[inside, start:end] = 0.0
    return mask


def capped(logits: Tensor) -> Tensor:
    """The model's softcap."""
    return architecture.SOFTCAP * torch.tanh(logits / architecture.SOFTCAP)


def new_backbone(rows: int) -> Gemma4ForCausalLM:
    """The model before training: branches small, and attention that can look things up from the start."""
    torch.manual_seed(SEED)
    model = Gemma4ForCausalLM(text_config(rows))
    for name, parameter in model.named_parameters():
        if "k_norm" in name:
            nn.init.constant_(parameter, 0.5)
        elif "embed_tokens" in name:
            nn.init.normal_(parameter, std=architecture.HIDDEN_SIZE**-0.5)
            nn.init.constant_(parameter[:, 0], COMMON)
        elif parameter.ndim >= 2:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif "post_attention" in name or name.endswith("post_feedforward_layernorm.weight"):
            nn.init.constant_(parameter, 1.5 if "layers.0.post_attention" in name else 0.4)
    start_attention([layer.self_attn for layer in model.model.layers])
    return model


@torch.no_grad()
def start_attention(layers: Sequence[Any]) -> None:
    """Heads that know the last three tokens, and heads that look up what equals one of them.

    Without these, millions of tokens go by until a small model finds them; training is free to move them.
    """
    first = layers[0]
    size = first.head_dim
    sketch = first.v_proj.weight[:size].clone()
    # What the heads write lies in spaces of its own, so that other layers can tell one from the other.
    spaces = torch.linalg.qr(torch.randn(architecture.HIDDEN_SIZE, 3 * size))[0].split(size, dim=1)
    first.o_proj.weight.zero_()
    for head, space in enumerate(spaces):
        look_back(first, head, distance=head + 1)
        first.v_proj.weight[head * size : (head + 1) * size] = sketch
        queries, _ = rows_of(first, head)
        first.o_proj.weight[:, queries] = space
    now, back1, back2, back3 = sketch, *(space.T for space in spaces)
    look_ups = (
        ((now, back1, now), (back1, now, back2), (back1, back2, now), (back2, now, back2)),
        ((now, now, back2), (back2, back2, now), (back1, back3, now), (now, now, back1)),
    )
    for layer, heads in zip((layers[1], layers[2]), look_ups, strict=True):
        for head, (query, key, value) in enumerate(heads):
            queries, keys = rows_of(layer, head)
            layer.q_proj.weight[queries] = far(query)
            layer.k_proj.weight[keys] = far(key)
            layer.v_proj.weight[keys] = value
            layer.o_proj.weight[:, queries] = sketch.T


def far(rows: Tensor) -> Tensor:
    """``rows`` of queries or keys without the faster rotary frequencies, which blur what is far."""
    kept = torch.arange(len(rows)) % (len(rows) // 2) >= len(rows) // 4
    return rows * kept[:, None]


def rows_of(layer: Any, head: int) -> tuple[slice, slice]:
    """Rows of the first query head of a KV head, and of the KV head itself."""
    size, group = layer.head_dim, layer.num_key_value_groups
    return slice(head * group * size, (head * group + 1) * size), slice(head * size, (head + 1) * size)


def look_back(layer: Any, head: int, *, distance: int) -> None:
    """A head that attends ``distance`` tokens back, by the fastest four rotary frequencies alone."""
    queries, keys = rows_of(layer, head)
    half = layer.head_dim // 2
    angles = distance * 10_000.0 ** (-torch.arange(4) / half)
    layer.q_proj.weight[queries] = 0
    layer.k_proj.weight[keys] = 0
    layer.q_proj.weight[queries.start : queries.start + 4, 0] = 1
    layer.k_proj.weight[keys.start : keys.start + 4, 0] = angles.cos()
    layer.k_proj.weight[keys.start + half : keys.start + half + 4, 0] = angles.sin()


def train(
    loss_of: Callable[[Sequence[Document]], tuple[Tensor, dict[str, float]]],
    parameters: Sequence[nn.Parameter],
    documents: Iterator[list[Document]],
    *,
    stage: str,
    steps: int,
    rate: float,
    log: Callable[[dict[str, Any]], None],
) -> None:
    """``steps`` of AdamW: warm-up, then a cosine to a twentieth of ``rate``."""
    # Not Muon: it moves every direction alike, and so loses the heads that look things up.
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    began, seen = time.monotonic(), 0
    found: dict[str, list[float]] = {}
    for step in range(1, steps + 1):
        share = min(step / 50, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        batch = next(documents)
        seen += sum(len(document.ids) for document in batch)
        loss, figures = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
        if step % LOG_EVERY == 0:
            means = {name: round(sum(values) / len(values), 4) for name, values in found.items()}
            log(
                {
                    "stage": stage,
                    "step": step,
                    "tokens": seen,
                    "seconds": round(time.monotonic() - began),
                    **means,
                }
            )
            found = {}


def bare_batches(encoder: Encoder, asked: Sequence[Decision]) -> Iterator[tuple[list[int], list[Document]]]:
    """Prompts of like length, and the places of ``asked`` that they come from."""
    prompts = [encoder.bare(decision) for decision in asked]
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place].ids))
    for first in range(0, len(order), 64):
        places = order[first : first + 64]
        yield places, [prompts[place] for place in places]


@torch.inference_mode()
def read_slots(model: nn.Module, head: nn.Linear, encoder: Encoder, asked: Sequence[Decision]) -> Tensor:
    """Slot logits ``[decisions, 24]``, minus infinity at the slots of no option."""
    logits = torch.empty(len(asked), architecture.NUM_SLOTS)
    for places, prompts in bare_batches(encoder, asked):
        logits[places] = slot_logits(model, head, prompts, encoder.pad)
    for row, decision in zip(logits, asked, strict=True):
        start = KIND_RANGES[decision.kind][0]
        row[:start] = -torch.inf
        row[start + len(decision.options) :] = -torch.inf
    return logits


def scored(logits: Tensor, asked: Sequence[Decision], kind: Kind) -> Scored:
    """The scores and labels of one kind, as ``decideploy calibrate`` takes them."""
    start, end = KIND_RANGES[kind]
    places = [place for place, decision in enumerate(asked) if decision.kind == kind]
    return Scored(
        scores=logits[places, start:end].double().numpy(),
        labels=np.array([asked[place].label for place in places]),
    )


def drawn(count: int, *, phrases: Part, words: Part) -> list[Decision]:
    """``count`` decisions that no training step has drawn."""
    return list(islice(decisions(SEED + 100, phrases=phrases, words=words), count))


def fitted(logits: Tensor, asked: Sequence[Decision]) -> dict[str, float]:
    """The temperature of each kind."""
    reports = {
        kind: fit_kind(
            kind, scored(logits, asked, kind), served=1.0, folds=FOLDS, min_examples=MIN_EXAMPLES, seed=0
        )
        for kind in KINDS
    }
    return {kind: round(report.temperature, 4) for kind, report in reports.items()}


def figures(logits: Tensor, asked: Sequence[Decision], temperatures: dict[str, float]) -> dict[str, Any]:
    """Of each kind the number of decisions, the share of right ones, and the error of calibration."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        read = scored(logits, asked, kind)
        probabilities = probabilities_at(read.scores, temperatures[kind])
        choices = probabilities.argmax(1)
        found[kind] = {
            "n": len(read.labels),
            "accuracy": round(float((choices == read.labels).mean()), 4),
            "ece": round(expected_calibration_error(probabilities, read.labels, 10), 4),
        }
        if kind == "score":
            near = np.abs(choices - read.labels) <= 1
            found[kind]["within_one"] = round(float(near.mean()), 4)
    return found


class Activations:
    """The largest activation before each projection of the routed experts."""

    def __init__(self, model: nn.Module) -> None:
        self.amax = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), 0.0)
        for name, module in model.named_modules():
            if name.endswith(".experts"):
                module.register_forward_pre_hook(self._look)

    def _look(self, experts: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        hidden, chosen, _ = inputs
        self._raise(("gate_proj", "up_proj"), hidden)
        for expert in range(architecture.NUM_EXPERTS):
            mine = hidden[(chosen == expert).any(-1)]
            gate, up = functional.linear(mine, experts.gate_up_proj[expert]).chunk(2, dim=-1)
            self._raise(("down_proj",), experts.act_fn(gate) * up)

    def _raise(self, names: Sequence[str], values: Tensor) -> None:
        if values.numel():
            for name in names:
                self.amax[name] = max(self.amax[name], values.abs().max().item())

    def rounded(self) -> dict[str, float]:
        """The figures, rounded up to whole numbers."""
        return {name: float(math.ceil(value)) for name, value in self.amax.items()}


@torch.no_grad()
def round_to_bf16(parameters: Iterable[nn.Parameter]) -> None:
    """Leave the values that the engine will run with."""
    for parameter in parameters:
        parameter.copy_(parameter.bfloat16().float())


def with_adapter(model: Gemma4ForCausalLM) -> nn.Module:
    """The frozen text model under a LoRA on its attention and dense MLPs."""
    torch.manual_seed(SEED)
    config = LoraConfig(
        r=trained.ADAPTER_RANK,
        lora_alpha=trained.ADAPTER_ALPHA,
        target_modules=r"layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)",
    )
    return get_peft_model(model.model, config)


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapter's matrices in the names that PEFT gives them over the whole model."""
    return {
        name.replace("base_model.model.", f"base_model.model.{TEXT_PREFIX}.").replace(".default.", "."): value
        for name, value in model.named_parameters()
        if ".lora_" in name
    }


def packed(backbone: dict[str, Tensor], adapter: dict[str, nn.Parameter], head: nn.Linear) -> bytes:
    """All that was trained, as the package's data."""
    table = backbone.pop("model.embed_tokens.weight")
    backbone.pop("lm_head.weight")
    tensors = {trained.USED: table[:-1], trained.UNUSED: table[-1]}
    for name, values in backbone.items():
        sort = trained.EXPERTS if ".experts." in name else trained.TEXT
        tensors[sort + name.replace("model.", f"{TEXT_PREFIX}.", 1)] = values
    tensors |= {trained.ADAPTER + name: values.detach() for name, values in adapter.items()}
    tensors |= {f"{trained.HEAD}proj.{name}": values.detach() for name, values in head.named_parameters()}
    exact = frozenset(name for name in tensors if name.startswith(trained.HEAD))
    return trained.pack({name: values.numpy() for name, values in tensors.items()}, exact=exact)


def main() -> None:
    """Train both stages, fit temperatures, measure, and write everything into OUT."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; a backbone.pt in it is kept")
    parser.add_argument("--rounds", type=int, default=len(ROUNDS), metavar="N", help="of the base model")
    parser.add_argument("--system1-steps", type=int, default=SYSTEM1_STEPS, metavar="N")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(THREADS)

    def log(line: dict[str, Any]) -> None:
        print(json.dumps(line), flush=True)
        with (options.out / "training.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    encoder = Encoder()
    model = new_backbone(len(encoder.used) + 1)
    checkpoint = options.out / "backbone.pt"
    if not checkpoint.exists():
        train_backbone(model, encoder, ROUNDS[: options.rounds], log)
        torch.save(model.state_dict(), checkpoint)
    model = new_backbone(len(encoder.used) + 1)
    model.load_state_dict(torch.load(checkpoint, weights_only=True))
    round_to_bf16(model.parameters())
    backbone = {name: values.clone() for name, values in model.state_dict().items()}
    system1, head = train_system1(model, encoder, options.system1_steps, log)
    facts = measure(system1, head, encoder, log)
    write_json(options.out / trained.FACTS.name, facts)
    (options.out / trained.WEIGHTS.name).write_bytes(packed(backbone, adapter_parameters(system1), head))


def train_backbone(
    model: Gemma4ForCausalLM, encoder: Encoder, rounds: Sequence[Mix], log: Callable[[dict[str, Any]], None]
) -> None:
    """Stage one: the base model; the rate falls in each round, and rises again with the next."""
    for number, mix in enumerate(rounds):
        loss = BackboneLoss(model, encoder)
        train(
            loss,
            [*model.parameters(), *loss.steps.parameters()],
            batches(backbone_documents(encoder, SEED + 1000 * number, mix), SEED + number),
            stage=f"backbone {number + 1}",
            steps=mix.steps,
            rate=mix.rate,
            log=log,
        )


@torch.no_grad()
def new_head(model: Gemma4ForCausalLM, encoder: Encoder) -> nn.Linear:
    """A head that reads what the base model reads: the rows of the slots' labels."""
    head = nn.Linear(architecture.HIDDEN_SIZE, architecture.NUM_SLOTS)
    head.weight.copy_(model.lm_head.weight[encoder.labels])
    head.bias.zero_()
    return head


def train_system1(
    model: Gemma4ForCausalLM, encoder: Encoder, steps: int, log: Callable[[dict[str, Any]], None]
) -> tuple[nn.Module, nn.Linear]:
    """Stage two: the adapter, in bfloat16's numbers at the end, and the float32 head."""
    head = new_head(model, encoder)
    system1 = with_adapter(model)
    adapter = list(adapter_parameters(system1).values())
    train(
        System1Loss(system1, head, encoder),
        [*adapter, *head.parameters()],
        batches(system1_documents(encoder, SEED + 10), SEED),
        stage="system 1",
        steps=steps,
        rate=1.5e-3,
        log=log,
    )
    round_to_bf16(adapter)
    return system1, head


def measure(
    system1: nn.Module, head: nn.Linear, encoder: Encoder, log: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Temperatures from the calibration part, figures of every held-out part at these."""
    activations = Activations(system1)
    asked = drawn(2800, phrases=Part.CALIBRATION, words=Part.TRAIN)
    temperatures = fitted(read_slots(system1, head, encoder, asked), asked)
    asked = drawn(2800, phrases=Part.CALIBRATION, words=Part.CALIBRATION)
    gold = fitted(read_slots(system1, head, encoder, asked), asked)
    log({"stage": "calibration", **temperatures})
    for phrases, words in product((Part.TRAIN, Part.HELD_OUT), repeat=2):
        asked = drawn(2800, phrases=phrases, words=words)
        found = figures(read_slots(system1, head, encoder, asked), asked, temperatures)
        log({"stage": "figures", "phrases": phrases, "words": words, **found})
    return {
        "activation_amax": activations.rounded(),
        "calibration": temperatures,
        "calibration_gold": gold,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """``content`` as an indented document."""
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
