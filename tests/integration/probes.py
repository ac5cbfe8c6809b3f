"""Runs the probes of this folder, each in a process of its own, on a vLLM of the test's choice."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Protocol, Self

from forks import Forks

from decideploy.decide import DecisionHead

HERE = Path(__file__).parent
ATTENTION_AND_HEAD = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
SHORT_PROMPT = (2, 10, 20, 30)
LONGEST_S = 600


class Run(Protocol):
    """Runs a probe of this folder; returns what it found and the engine's log."""

    def __call__(self, name: str, *arguments: str, vllm: Path | None = None) -> tuple[dict, str]: ...


def run_probe(name: str, *arguments: str, vllm: Path | None = None) -> tuple[dict, str]:
    """Run a probe in a new process."""
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), *arguments],
        env=environment(vllm),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    return found_in(done.stdout)


class Probes:
    """Runs probes as forks of a process that has imported their vLLM: a context manager.

    The installed vLLM's process is kept; of others there is one at a time, so ask for each in one go. All
    write what they print to ``folder``, and vLLM's caches, ``caches``, are shared.
    """

    def __init__(self, folder: Path, caches: Path) -> None:
        self._folder, self._caches = folder, caches
        self._number = count()
        self._installed, self._other = ExitStack(), ExitStack()
        self._forks: dict[Path | None, Forks] = {}

    def run(self, name: str, *arguments: str, vllm: Path | None = None) -> tuple[dict, str]:
        if vllm not in self._forks:
            self._import(name, vllm)
        output = self._folder / f"{next(self._number)}-{name}.log"
        self._forks[vllm].start(name, *arguments, output=output).exit_status(LONGEST_S)
        return found_in(output.read_text())

    def _import(self, name: str, vllm: Path | None) -> None:
        if vllm:
            self._other.close()
            self._forks = {tree: forks for tree, forks in self._forks.items() if tree is None}
        variables = environment(vllm) | {"VLLM_CACHE_ROOT": str(cache_of(vllm, self._caches))}
        forks = Forks([name], env=variables, log=self._folder / f"{next(self._number)}-import.log")
        self._forks[vllm] = (self._other if vllm else self._installed).enter_context(forks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._other.close()
        self._installed.close()


def cache_of(vllm: Path | None, caches: Path) -> Path:
    """vLLM's cache folder: it remembers one version of a model's file, so another version has its own."""
    installed = Path(find_spec("vllm").origin).parent
    same = vllm is None or model_file(vllm / "vllm") == model_file(installed)
    return caches / ("vllm" if same else "vllm-other")


def model_file(package: Path) -> bytes:
    return (package / "model_executor" / "models" / "gemma4_mm.py").read_bytes()


def environment(vllm: Path | None) -> dict[str, str]:
    return os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([*([str(vllm)] if vllm else []), str(HERE)]),
    }


def found_in(log: str) -> tuple[dict, str]:
    answers = [line for line in log.splitlines() if line.startswith("{")]
    assert answers, log[-4000:]
    return json.loads(answers[-1]), log


def read_with(
    model: Path,
    *more: str,
    vllm: Path | None = None,
    target_modules: Sequence[str] = ATTENTION_AND_HEAD,
    prompts: Sequence[Sequence[int]] = (SHORT_PROMPT,),
    run: Run = run_probe,
) -> tuple[dict, str]:
    """What ``engine_probe.py`` reads on the 24 verbalizers of ``model``."""
    head = DecisionHead.read(model / "adapter_vllm" / "decision_head.json")
    arguments = [str(model), "--adapter", str(model / "adapter_vllm")]
    arguments += ["--prompts", json.dumps(prompts), "--allow", *map(str, head.verbalizer_ids)]
    arguments += ["--target-modules", *target_modules]
    return run("engine_probe", *arguments, *more, vllm=vllm)
