"""Run in a process of its own: the real engine with its vision tower, asked through the product's own seam.

Reads a JSON list of cases, ``{"token_ids": […], "images": [path, …]}``, one by one, then the first again
after its images were prepared for a request that never came, then all at once. Prints one JSON object;
the engine's log goes around it.
"""

import argparse
import asyncio
import json
from pathlib import Path

# Also in the engine's own process: it is spawned, and imports this file first.
import image_processor  # noqa: F401
from PIL import Image
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from decideploy.decide import Prompt
from decideploy.serve.vllm_engine import VllmEngine, image_tokens, max_images


def start(options: argparse.Namespace) -> AsyncLLM:
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=options.model,
            enable_lora=True,
            max_lora_rank=32,
            max_loras=1,
            lora_target_modules=options.target_modules,
            max_model_len=2048,
            max_num_seqs=8,
            logprobs_mode="processed_logprobs",
            max_logprobs=len(options.allow),
            limit_mm_per_prompt={"image": 2},
            mm_processor_cache_gb=1,
        )
    )


async def observe(client: AsyncLLM, options: argparse.Namespace) -> dict:
    engine = VllmEngine(client, LoRARequest("system1", 1, options.adapter))
    prompts = [prompt(case) for case in json.loads(options.cases.read_text())]

    async def read(number: int, name: str) -> dict:
        reading = await engine.read(prompts[number], options.allow, request_id=f"{name}-{number}")
        return {
            "logprobs": list(reading.logprobs.items()),
            "prompt_tokens": reading.prompt_tokens,
            "cached_tokens": reading.cached_tokens,
        }

    alone = [await read(number, "alone") for number in range(len(prompts))]
    again = await read(0, "again")
    # What a request leaves that is cancelled between vLLM's two processes.
    await client.reset_mm_cache()
    await engine._image_input(prompts[0])
    recovered = await read(0, "recovered")
    together = await asyncio.gather(*(read(number, "together") for number in range(len(prompts))))
    written = await engine.generate(prompts[0], max_tokens=4, stop_token_ids=[], request_id="written")
    tokens = image_tokens(client)
    return {
        "alone": alone,
        "again": again,
        "recovered": recovered,
        "together": together,
        "written": len(written.token_ids),
        "max_images": max_images(client),
        "image_tokens": [tokens.token_id, tokens.count],
    }


def prompt(case: dict) -> Prompt:
    images = tuple(Image.open(path).convert("RGB") for path in case["images"])
    return Prompt(token_ids=tuple(case["token_ids"]), images=images)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--target-modules", nargs="*")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--allow", nargs="+", type=int, required=True)
    options = parser.parse_args()
    client = start(options)
    try:
        print("\n" + json.dumps(await observe(client, options)), flush=True)
    finally:
        client.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
