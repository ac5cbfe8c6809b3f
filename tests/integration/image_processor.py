"""Gemma-4's processor for images alone, where torchvision, which its video processor needs, is not installed.

Importing this registers it in vLLM; every process of the engine must import it.
"""

from transformers.models.gemma4 import Gemma4Processor
from transformers.processing_utils import ProcessorMixin
from vllm.model_executor.models.gemma4_mm import (
    Gemma4DummyInputsBuilder,
    Gemma4ForConditionalGeneration,
    Gemma4MultiModalProcessor,
    Gemma4ProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY


class WithoutVideo(ProcessorMixin):
    """Stands behind Gemma-4's processor and forgets the video processor that it hands on."""

    def __init__(self, *args, video_processor=None, **kwargs):
        super().__init__(*args, **kwargs)


class ImageProcessor(Gemma4Processor, WithoutVideo):
    def __init__(self, feature_extractor, image_processor, tokenizer, chat_template=None, **kwargs):
        super().__init__(
            feature_extractor, image_processor, tokenizer, None, chat_template=chat_template, **kwargs
        )

    @classmethod
    def get_attributes(cls):
        return ["feature_extractor", "image_processor", "tokenizer"]


class ImageInfo(Gemma4ProcessingInfo):
    def get_hf_processor(self, **kwargs):
        return self.ctx.get_hf_processor(ImageProcessor, **kwargs)

    def get_supported_mm_limits(self):
        return {"image": None}

    def get_mm_max_tokens_per_item(self, seq_len, mm_counts):
        return {"image": super().get_mm_max_tokens_per_item(seq_len, mm_counts)["image"]}


MULTIMODAL_REGISTRY.register_processor(
    Gemma4MultiModalProcessor, info=ImageInfo, dummy_inputs=Gemma4DummyInputsBuilder
)(Gemma4ForConditionalGeneration)
