"""Run in a process of its own, against whichever vLLM is first on the path.

Lets the base model write twice with one seed after a prompt that takes four steps to read, and prints the
tokens as a JSON object, or the error that ended the engine.
"""

import json
import sys

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

STEP_TOKENS = 64


def write(llm: LLM) -> list[int]:
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=7, ignore_eos=True, detokenize=False)
    prompt = TokensPrompt(prompt_token_ids=[2, *range(1000, 1000 + 4 * STEP_TOKENS - 10)])
    (answer,) = llm.generate([prompt], params, use_tqdm=False)
    return list(answer.outputs[0].token_ids)


def main() -> None:
    try:
        llm = LLM(
            sys.argv[1],
            language_model_only=True,
            enforce_eager=True,
            max_model_len=512,
            max_num_seqs=2,
            max_num_batched_tokens=STEP_TOKENS,
            # A second reading from the cache would be one step.
            enable_prefix_caching=False,
        )
        result = {"written": [write(llm), write(llm)]}
    except Exception as error:  # the error is the result
        result = {"error": f"{type(error).__name__}: {error}"}
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
