"""Run in a process of its own, against whichever vLLM is first on the path.

Starts the real engine in this process, reads prompts with the adapter and then without it, and prints a
JSON object: for each prompt the log-probabilities by token id, or the error that ended it. The engine's log
goes around it. ``--stock-base`` starts the engine without any LoRA and reads the base model alone.
"""

import argparse
import json

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest


def start(options: argparse.Namespace) -> LLM:
    lora = (
        {}
        if options.stock_base
        else {
            "enable_lora": True,
            "max_lora_rank": 32,
            "max_loras": 1,
            "lora_target_modules": options.target_modules,
        }
    )
    backend = {"moe_backend": options.moe_backend} if options.moe_backend else {}
    return LLM(
        options.model,
        language_model_only=True,
        # With LoRA the CPU engine runs eager whatever is asked; so that both readings are of one kind:
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=2,
        logprobs_mode="processed_logprobs",
        max_logprobs=len(options.allow),
        **lora,
        **backend,
    )


def read(llm: LLM, options: argparse.Namespace, lora: LoRARequest | None) -> list[dict[int, float]]:
    params = SamplingParams(
        max_tokens=1,
        temperature=1.0,
        allowed_token_ids=options.allow,
        logprobs=len(options.allow),
        detokenize=False,
    )
    # One by one: what a batch changes is not what is looked at here.
    answers = [
        llm.generate([TokensPrompt(prompt_token_ids=ids)], params, lora_request=lora, use_tqdm=False)[0]
        for ids in options.prompts
    ]
    first = [answer.outputs[0].logprobs[0] for answer in answers]
    return [{token: value.logprob for token, value in row.items()} for row in first]


def observe(options: argparse.Namespace) -> dict[str, list[dict[int, float]]]:
    llm = start(options)
    if options.stock_base:
        return {"base": read(llm, options, None)}
    adapted = read(llm, options, LoRARequest("system1", 1, options.adapter))
    return {"adapted": adapted, "base": read(llm, options, None)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--adapter")
    parser.add_argument("--stock-base", action="store_true")
    parser.add_argument("--target-modules", nargs="*")
    parser.add_argument("--moe-backend")
    parser.add_argument("--prompts", type=json.loads, required=True, help="a JSON list of lists of token ids")
    parser.add_argument("--allow", nargs="+", type=int, required=True)
    options = parser.parse_args()
    try:
        result = observe(options)
    except Exception as error:  # the error is the result
        result = {"error": f"{type(error).__name__}: {error}"}
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
