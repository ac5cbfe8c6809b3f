"""The reference engine for prompts with images: the whole transformers model, vision tower included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from numpy.typing import NDArray
from PIL.Image import Image
from reference import Reference
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil


class ImageReference(Reference):
    """System 1 of one bf16 model folder about images, in float32 on the CPU."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__(model_dir)
        self._whole = self._peft.get_base_model().model.eval()
        self._images = Gemma4ImageProcessorPil.from_pretrained(model_dir)

    def expanded(self, token_ids: Sequence[int], soft_tokens: Sequence[int]) -> list[int]:
        """``token_ids`` with each image token as the model reads it: begin, so many image tokens, end."""
        config, counts = self._whole.config, iter(soft_tokens)
        expanded = []
        for token_id in token_ids:
            image = token_id == config.image_token_id
            inner = [token_id] * (next(counts) if image else 1)
            expanded += [config.boi_token_id, *inner, config.eoi_token_id] if image else inner
        return expanded

    @torch.inference_mode()
    def read(
        self, token_ids: Sequence[int], images: Sequence[Image], kind: str, n_options: int
    ) -> tuple[NDArray, int]:
        """Calibrated probabilities of the active slots, and the prompt's length in tokens."""
        pixels = self._images(images=list(images), return_tensors="pt")
        ids = torch.tensor([self.expanded(token_ids, pixels["num_soft_tokens_per_image"].tolist())])
        hidden = self._whole(
            input_ids=ids,
            pixel_values=pixels["pixel_values"],
            image_position_ids=pixels["image_position_ids"],
            mm_token_type_ids=(ids == self._whole.config.image_token_id).long(),
            use_cache=False,
        ).last_hidden_state[0, -1]
        logits = self._cap(hidden.double() @ self._weight.T + self._bias).numpy()
        return self._read(logits, kind, n_options), ids.shape[1]
