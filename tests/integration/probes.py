"""Runs the probes of this folder, each in a process of its own, on a vLLM of the test's choice."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from decideploy.decide import DecisionHead

HERE = Path(__file__).parent
ATTENTION_AND_HEAD = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
SHORT_PROMPT = (2, 10, 20, 30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_probe(name: str, *arguments: str, vllm: Path | None = None) -> tuple[dict, str]:
    """Run a probe of this folder in a new process; returns what it found and the engine's log."""
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(vllm) if vllm else "",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / name), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    log = done.stdout + done.stderr
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers, log[-4000:]
    return json.loads(answers[-1]), log


def read_with(
    model: Path,
    *more: str,
    vllm: Path | None = None,
    target_modules: Sequence[str] = ATTENTION_AND_HEAD,
    prompts: Sequence[Sequence[int]] = (SHORT_PROMPT,),
) -> tuple[dict, str]:
    """What ``engine_probe.py`` reads on the 24 verbalizers of ``model``."""
    head = DecisionHead.read(model / "adapter_vllm" / "decision_head.json")
    arguments = [str(model), "--adapter", str(model / "adapter_vllm")]
    arguments += ["--prompts", json.dumps(prompts), "--allow", *map(str, head.verbalizer_ids)]
    arguments += ["--target-modules", *target_modules]
    return run_probe("engine_probe.py", *arguments, *more, vllm=vllm)
