"""Start the real engine on single faults and record what it does when nobody verifies the files.

Writes a JSON list: one entry a fault, with the seconds until the engine had answered or given up. The table
in docs/verification.md is made from it. Run by hand on the CPU build: a minute or less a fault.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "artifacts")]

from model_edits import linked_copy  # noqa: E402
from probes import ATTENTION_AND_HEAD, run_probe  # noqa: E402
from test_artifacts_rules import BF16_FAULTS, NVFP4_FAULTS  # noqa: E402

from decideploy.decide.head import DecisionHead  # noqa: E402
from decideploy.demo import write_demo_model  # noqa: E402

PROMPTS = [[2, 10, 20, 30], [2, *range(500, 560)]]
FAULTS = {
    "bf16": (
        "adapter-value-copy:absent",
        "adapter-key-unmapped:path",
        "adapter-alpha:double",
        "adapter-pattern:alpha",
        "adapter-zero:b",
        "adapter-not-finite:nan",
        "adapter-without-head:no-tensors",
        "adapter-pair-incomplete:b",
        "adapter-rank:large",
        "index-tensor-absent:norm",
        "experts-missing:down",
        "header-malformed:truncated-shard",
    ),
    "nvfp4": (
        "input-scale:zero",
        "gate-up-scale:differ",
        "expert-tensor-missing:input_scale",
        "group-scale-nan:nan",
        "quant-experts-excluded:substring",
        "quant-not-excluded:attention",
        "quant-exclude-key:key",
    ),
}


def edits(variant):
    faults = {"bf16": BF16_FAULTS, "nvfp4": NVFP4_FAULTS}[variant]
    return {f"{code}:{name}": edit for code, name, edit in faults if f"{code}:{name}" in FAULTS[variant]}


def observe(model, allowed):
    arguments = [str(model), "--adapter", str(model / "adapter_vllm"), "--prompts", json.dumps(PROMPTS)]
    arguments += ["--allow", *map(str, allowed), "--target-modules", *ATTENTION_AND_HEAD]
    begun = time.monotonic()
    try:
        answer, _ = run_probe("engine_probe", *arguments)
    except AssertionError as crash:
        answer = {"error": "process died: " + str(crash).strip().splitlines()[-1]}
    return answer, time.monotonic() - begun


def largest_shift(answer, reference):
    """Largest difference of a log-probability in nats, None when the engine returned no number."""
    shifts = [
        abs(value - right.get(token, math.nan))
        for side in ("adapted", "base")
        for left, right in zip(answer[side], reference[side], strict=True)
        for token, value in left.items()
    ]
    return None if any(not math.isfinite(shift) for shift in shifts) else max(shifts)


def entry(variant, name, answer, seconds, reference):
    told = {"variant": variant, "fault": name, "seconds": round(seconds)}
    if "error" in answer:
        return told | {"engine": "fails", "error": answer["error"].splitlines()[0][:160]}
    return told | {"engine": "answers", "shift_nats": largest_shift(answer, reference)}


def record(variant, folder, known):
    whole = folder / variant
    write_demo_model(whole, nvfp4=variant == "nvfp4")
    allowed = DecisionHead.read(whole / "adapter_vllm" / "decision_head.json").verbalizer_ids
    reference, seconds = observe(whole, allowed)
    print(variant, "whole", round(seconds), str(reference)[:300], flush=True)
    if "error" in reference:
        return
    yield entry(variant, "none", reference, seconds, reference)
    for name, edit in edits(variant).items():
        if (variant, name) in known:
            continue
        model = linked_copy(whole, folder / f"{variant}-{name.replace(':', '-')}")
        edit(model)
        yield entry(variant, name, *observe(model, allowed), reference)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--variant", choices=sorted(FAULTS), action="append")
    options = parser.parse_args()
    entries = json.loads(options.out.read_text()) if options.out.is_file() else []
    with tempfile.TemporaryDirectory() as folder:
        for variant in options.variant or sorted(FAULTS):
            known = {(one["variant"], one["fault"]) for one in entries if one["fault"] != "none"}
            for found in record(variant, Path(folder), known):
                print(found, flush=True)
                kept = [o for o in entries if (o["variant"], o["fault"]) != (variant, found["fault"])]
                entries = [*kept, found]
                options.out.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
