"""What vLLM hands to an endpoint plugin, made in code."""

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from decideploy.serve.plugin import DecidePlugin

BUILD: Any = SimpleNamespace(
    version="0.30.0+cpu.decideploy.1",
    recipe="cpu",
    files_sha256="f" * 64,
    patches=("0001-lora.patch",),
)
MODEL_CONFIG = {
    "max_model_len": 512,
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": 20,
    "logits_processors": None,
    "is_mm_prefix_lm": False,
    "allowed_media_domains": None,
}


class FakeClient:
    """vLLM's engine client, as far as a decision needs it."""

    def __init__(self, outputs: Any = None, error: Exception | None = None, **config: Any) -> None:
        model_config = SimpleNamespace(**{**MODEL_CONFIG, **config})
        model_config.get_diff_sampling_param = lambda: {"temperature": 0.7, "top_k": 64, "max_tokens": 9}
        self.vllm_config = SimpleNamespace(
            model_config=model_config,
            scheduler_config=SimpleNamespace(max_num_seqs=64),
            speculative_config=None,
            device_config=SimpleNamespace(device_type="cpu"),
            parallel_config=SimpleNamespace(_api_process_count=1),
        )
        self.renderer = SimpleNamespace(mm_processor=None)
        self.calls: list[dict[str, Any]] = []
        self.closed = 0
        self._outputs = outputs
        self._error = error

    def get_tokenizer(self) -> Any:
        return FakeTokenizer()

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: Any = None,
        trace_headers: Any = None,
    ) -> AsyncIterator[Any]:
        call = {"prompt": prompt, "params": sampling_params, "id": request_id}
        self.calls.append({**call, "lora": lora_request, "trace": trace_headers})
        try:
            if self._error is not None:
                raise self._error
            for output in [self._answer(sampling_params)] if self._outputs is None else self._outputs:
                yield output
            await self._linger()
        finally:
            self.closed += 1

    async def _linger(self) -> None:
        """Nothing follows the answer; a subclass hangs here."""

    def _answer(self, params: Any) -> Any:
        logprobs = {
            token: SimpleNamespace(logprob=-0.5 * i) for i, token in enumerate(params.allowed_token_ids)
        }
        return output(logprobs=[logprobs])


class FakeTokenizer:
    """transformers' tokenizer, as far as System 2 needs it."""

    special_tokens_map = {"bos_token": "<bos>"}  # noqa: RUF012

    chat_template = "{{ bos_token }}{{ messages }}{{ enable_thinking }}{{ fail }}"

    def get_chat_template(self) -> str:
        return self.chat_template

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool, **kwargs: Any
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        if "fail" in kwargs:
            raise KeyError(kwargs["fail"])
        return f"<bos><|turn>user\n{conversation[0]['content']}<turn|>\n{sorted(kwargs)}"


def output(**completion: Any) -> Any:
    """One output of the engine with one completion."""
    fields = {"finish_reason": "length", "logprobs": None, "token_ids": (), **completion}
    return SimpleNamespace(
        outputs=[SimpleNamespace(**fields)], prompt_token_ids=list(range(40)), num_cached_tokens=32
    )


def start(model: Path, client: FakeClient, adapters: dict[str, Any] | None = None) -> SimpleNamespace:
    """What vLLM does with the plugin, and the state that it leaves."""
    plugin = DecidePlugin(lambda: BUILD)
    plugin.attach_router(FastAPI())
    adapters = {"system1": lora(model)} if adapters is None else adapters
    serving = SimpleNamespace(lora_requests=adapters, base_model_paths=[SimpleNamespace(name="demo")])
    state = SimpleNamespace(openai_serving_models=serving)
    asyncio.run(plugin.init_state(client, state, Namespace(model=str(model))))  # type: ignore[arg-type]
    return state


def lora(model: Path) -> Any:
    return SimpleNamespace(lora_name="system1", lora_path=str(model / "adapter_vllm"))
