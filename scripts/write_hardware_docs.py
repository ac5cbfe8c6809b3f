#!/usr/bin/env python3
"""Write docs/hardware.md from the tables of cards and kernels and from the plan itself.

``--check`` writes nothing and exits with 1 when the file is not what they give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from decideploy.artifacts import ModelFacts, sizes_of
from decideploy.errors import CapacityError, ConfigError
from decideploy.hardware import card_report, kernel_path, known_cards
from decideploy.hardware.kernels import backends, known_bad
from decideploy.plan import LaunchPlan, Workload, plan
from decideploy.plan.kv_cache import KvShape

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "hardware.md"
MODEL = "autotrust/GEV-26B-Decide-NVFP4"
GIB = 1024**3
BLOCK_TOKENS = 16
VERDICTS = {"avoid": "not planned; refused when asked for", "prove": "planned; told as a note"}

INTRODUCTION = f"""\
# Hardware

<!-- Written by scripts/write_hardware_docs.py; change the tables of cards and kernels, not this file. -->

    decideploy probe                           # what is here, and how each value was learnt
    decideploy plan {MODEL} --hardware rtx4090
    decideploy plan DIR --hardware probe.json --plot memory      # memory.png and memory.svg
    decideploy plan DIR --calibrate            # with what earlier starts here measured

The second is "would it fit?" by published sizes, without a network; DIR may also be a folder with a
config.json alone.

`plan` takes the workload (`--clients`, `--prompt-tokens MEDIAN,LONGEST`, `--thinking-share`,
`--think-tokens`, `--max-images`, `--goal latency|throughput`) and chooses the rest, each choice with its
reason; a choice can be forced (`--max-model-len`, `--max-num-seqs`, `--max-num-batched-tokens`,
`--moe-backend`, `--tensor-parallel-size`, `--kv-cache-dtype fp8`, `--kv-cache-memory-bytes`,
`--gpu-memory-utilization`, `--draft-model`), and is then kept or refused, never reduced.
[memory-model.md](memory-model.md) has the terms of the sum and how far they were measured.

The longest request must fit: the longest prompt, 280 tokens for each image that a request may have, a
thought where there is a thinking share, and the answer. Memory goes to that first, then to a step of
2,048 tokens (no fewer than 512), then to the KV cache, and beyond 36 GiB to a longer step. Where even
that does not fit, `plan` ends with status 7, says what is needed, what there is and the largest part,
and names what would make it fit: options that it has tried, those that cost least first, and the
smallest known card.

## What the plan gives for each card

`{MODEL}` by its published sizes, an empty card, default workload (64 clients, prompts to 1,024 tokens,
four images). Forecasts: of these cards only an H200 was used, with random weights. GiB; "total" is what
CUDA tells, which is less than the driver does: as published, with ~ where it is not and 3 % (at most
1 GiB) are taken off the driver's figure (`cards.toml` has each source). "longest" is max_model_len,
"8k" how many sequences of 8,192 tokens the KV cache holds at once.
"""

HEAD = """
| `--hardware` | card | kernel | total | weights | KV cache | longest | 8k | fp8 KV: longest, 8k |
|---|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    facts = sizes_of(MODEL)
    assert facts is not None
    rows = "\n".join(_card_row(name, facts) for name in _cards_by_size())
    return "\n".join(
        (
            INTRODUCTION.rstrip() + "\n" + HEAD.rstrip(),
            rows,
            "",
            *_kernel_section(),
            "",
            *_bad_section(),
            "",
        )
    )


def _cards_by_size() -> list[str]:
    cards = known_cards()
    return sorted(cards, key=lambda name: (float(cards[name].compute_capability), cards[name].memory_bytes))


def _card_row(name: str, facts: ModelFacts) -> str:
    card = known_cards()[name]
    kernel = kernel_path(card.compute_capability)
    start = f"| `{name}` | {card.name}, {card.compute_capability} | {kernel.backend} {kernel.activation} "
    start += f"| {'' if card.usable_gib else '~'}{card.memory_bytes / GIB:.1f} "
    try:
        launch = plan(facts, card_report(name))
    except CapacityError as error:
        short = (error.needed_bytes - error.available_bytes) / GIB
        remedy = error.next_step.partition("; or ")[0]
        return f"{start}| | {short:.1f} short: {remedy} | | | |"
    return (
        f"{start}| {launch.memory.weights_bytes / GIB:.1f} | {launch.memory.kv_cache_bytes / GIB:.1f} "
        f"| {launch.max_model_len:,} | {_at_once(facts, launch):.0f} | {_with_fp8(facts, name)} |"
    )


def _at_once(facts: ModelFacts, launch: LaunchPlan) -> float:
    """Sequences of 8,192 tokens in the KV cache of ``launch``."""
    shape = KvShape.of(facts, BLOCK_TOKENS, launch.kv_cache_dtype)
    return launch.memory.kv_cache_bytes / shape.sequence_bytes(8192)


def _with_fp8(facts: ModelFacts, name: str) -> str:
    try:
        launch = plan(facts, card_report(name), workload=Workload(kv_cache_dtype="fp8"))
    except ConfigError:
        return "no"
    return f"{launch.max_model_len:,}, {_at_once(facts, launch):.0f}"


def _kernel_section() -> Iterator[str]:
    yield "## Expert kernels"
    yield ""
    yield "In order of preference; the first is planned whose package is installed and that is not known to"
    yield "fail there. A test asks vLLM's own support checks about every row. Only Humming and Marlin have"
    yield "run (one H200, random weights). Before a load `serve` tries the kernel by numbers on the card, and"
    yield "takes the next where they are wrong ([probe.md](probe.md))."
    yield ""
    yield "| compute capability | with patch 0003 | without | why |"
    yield "|---|---|---|---|"
    for capability in sorted({card.compute_capability for card in known_cards().values()}, key=float):
        path = kernel_path(capability)
        stock = kernel_path(capability, patched=False)
        yield f"| {capability} | {', '.join(path.order)} | {', '.join(stock.order)} | {path.reason} |"
    yield ""
    yield "| `--moe-backend` | in the log | activations | package | needs |"
    yield "|---|---|---|---|---|"
    for row in backends().values():
        package = f"`{row.package}`" if row.package else "the wheel"
        yield f"| `{row.name}` | {row.log} | {row.activation} | {package} | {row.needs or 'nothing more'} |"
    yield ""
    yield "`serve` compares the engine's log with the plan after every start. Another kernel than planned"
    yield "is told in red, in `doctor`, in `/v1/decide/info` (`engine.kernel`) and as"
    yield "`decideploy_kernel_mismatch`; `serve --strict-kernel` ends the start."


def _bad_section() -> Iterator[str]:
    yield "## Known to go wrong"
    yield ""
    yield "| kernels | where | what | verdict | reports |"
    yield "|---|---|---|---|---|"
    for row in known_bad():
        where = ", ".join(row.compute_capability) or "everywhere"
        where += ", more than one GPU" if row.tensor_parallel else ""
        verdict = {"avoid": "not planned; refused when asked for", "prove": "planned; told as a note"}[
            row.verdict
        ]
        yield f"| {', '.join(row.backends)} | {where} | {row.why} | {verdict} | {', '.join(row.references)} |"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when it is not current")
    options = parser.parse_args()
    wanted = page()
    if options.check:
        current = PAGE.is_file() and PAGE.read_text("utf-8") == wanted
        if not current:
            print(f"{PAGE} is not current; run {Path(__file__).name}", file=sys.stderr)
        return 0 if current else 1
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
