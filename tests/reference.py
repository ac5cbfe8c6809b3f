"""The reference engine: transformers, PEFT and the float32 head, with nothing of vLLM in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from safetensors.torch import load_file
from transformers import Gemma4ForConditionalGeneration

Array = NDArray[np.float64]
_BATCH = 25

# transformers warns about loading details that are this engine's own choice (float32 on CPU).
logging.getLogger("transformers").setLevel(logging.ERROR)


class Reference:
    """System 1 and the base model of one bf16 model folder, in float32 on the CPU.

    ``adapter=None`` leaves the backbone adapter out.
    """

    def __init__(self, model_dir: Path, *, adapter: str | None = "adapter") -> None:
        judge = json.loads((model_dir / "judge_config.json").read_text())
        self._ranges = judge["slots"]["ranges"]
        self._softcap = float(judge["softcap"])
        self.verbalizer_ids: list[int] = judge["verbalizer_ids"]
        self._temperatures = json.loads((model_dir / "calibration.json").read_text())["per_kind"]
        head = load_file(model_dir / "head.safetensors")
        self._weight, self._bias = head["proj.weight"].double(), head["proj.bias"].double()
        model = Gemma4ForConditionalGeneration.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation="eager"
        )
        self._lm_rows = model.lm_head.weight[self.verbalizer_ids].double().detach()
        self._lm_head = model.lm_head.weight
        self._peft = PeftModel.from_pretrained(model, model_dir / adapter) if adapter else None
        self._text = model.model.language_model.eval()

    @torch.inference_mode()
    def hidden(self, prompts: Sequence[Sequence[int]], *, use_adapter: bool = True) -> torch.Tensor:
        """Final-norm hidden states ``[len(prompts), hidden]`` of the last tokens, float64."""
        if self._peft is not None and not use_adapter:
            with self._peft.disable_adapter():
                return self._last_hidden(prompts)
        return self._last_hidden(prompts)

    def _last_hidden(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        by_length = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        rows = torch.empty(len(prompts), self._text.config.hidden_size, dtype=torch.float64)
        for first in range(0, len(by_length), _BATCH):
            places = by_length[first : first + _BATCH]
            rows[places] = self._batch([prompts[place] for place in places]).double()
        return rows

    def _batch(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        # Padding stands on the right, where causal attention never looks from the last real token.
        longest = max(map(len, prompts))
        padded = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        hidden = self._text(input_ids=padded, use_cache=False).last_hidden_state
        return hidden[torch.arange(len(prompts)), torch.tensor([len(prompt) - 1 for prompt in prompts])]

    def slot_logits(self, prompts: Sequence[Sequence[int]]) -> Array:
        """Capped slot logits ``[len(prompts), 24]`` of System 1, the bias inside the cap."""
        return self._cap(self.hidden(prompts) @ self._weight.T + self._bias).numpy()

    def slot_logits_bias_outside(self, prompts: Sequence[Sequence[int]]) -> Array:
        """As an engine that adds the bias to log-probabilities reads them: the bias outside the cap."""
        return (self._cap(self.hidden(prompts) @ self._weight.T) + self._bias).numpy()

    def probabilities(
        self, prompts: Sequence[Sequence[int]], kinds: Sequence[str], n_options: Sequence[int]
    ) -> list[Array]:
        """Calibrated probabilities of each decision's active slots."""
        logits = self.slot_logits(prompts)
        return [self._read(row, kind, n) for row, kind, n in zip(logits, kinds, n_options, strict=True)]

    def base_probabilities(
        self, prompts: Sequence[Sequence[int]], kinds: Sequence[str], n_options: Sequence[int]
    ) -> list[Array]:
        """The base model's own read of the same verbalizers: no adapter, no head, temperature 1."""
        logits = self._cap(self.hidden(prompts, use_adapter=False) @ self._lm_rows.T).numpy()
        starts = [self._ranges[kind][0] for kind in kinds]
        return [_softmax(row[s : s + n]) for row, s, n in zip(logits, starts, n_options, strict=True)]

    def base_logprobs(self, prompt: Sequence[int], *, use_adapter: bool = False) -> Array:
        """Log-probabilities ``[vocab]`` of the token after the prompt, from the model's own lm_head."""
        hidden = self.hidden([prompt], use_adapter=use_adapter)[0].float()
        logits = self._cap((self._lm_head.detach() @ hidden).double())
        return torch.log_softmax(logits, -1).numpy()

    def _cap(self, logits: torch.Tensor) -> torch.Tensor:
        return self._softcap * torch.tanh(logits / self._softcap)

    def _read(self, logits: Array, kind: str, n_options: int) -> Array:
        start = self._ranges[kind][0]
        return _softmax(logits[start : start + n_options] / self._temperatures[kind])


def _softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()
