#!/usr/bin/env python3
"""Write docs/verification.md from the rules and from what the engine was seen to do without them.

``--check`` writes nothing and exits with 1 when the file is not what the rules give.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from decideploy.artifacts.issue import Rule
from decideploy.artifacts.report import first_line
from decideploy.artifacts.verification import SUBJECTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "verification.md"
ENGINE = ROOT / "docs" / "verification-engine.json"

INTRODUCTION = """\
# Verification

<!-- Written by scripts/write_verification_docs.py; change the rules, not this file. -->

`decideploy verify MODEL` checks a model's files before an engine sees them, and so does
`scripts/verify_artifacts.py MODEL` with neither torch nor vLLM installed. All faults are reported at
once, each with a stable code, the file and key, what would happen at run time, and the remedy. Exit
status: 0, or 5 when a rule of severity error found something.

    decideploy verify MODEL                          # a folder: headers, small files, adapter
    decideploy verify MODEL --deep                   # also every expert scale, and the tokenizer itself
    decideploy verify OWNER/NAME@COMMIT              # a hub id, from its headers: at most 20 MB are moved
    decideploy verify MODEL --format json            # or sarif, github; docs/schemas/verification.schema.json
    decideploy lock-model MODEL --out m.json         # size and sha256 of every file
    decideploy lock-model MODEL --out m.json --sign-key key.pem
    decideploy verify MODEL --manifest m.json --verify-key key.pub

A hub id needs its commit of 40 hexadecimal digits: branches and tags move. From the hub, rules that need
values which were not moved are listed as not run; `--deep` downloads the model and runs them. The chat
template is formatted in Jinja's sandbox, in a process with 5 seconds and 1 GB; where jinja2 is not
installed that rule is listed as not run. No rule can see that two tensors of equal shape were swapped or
that single weights are damaged: compare with a manifest for that. Signing
needs the extra `signing`; keys are elliptic-curve keys in PEM (`openssl ecparam -name prime256v1 -genkey
-noout -out key.pem`, `openssl ec -in key.pem -pubout -out key.pub`).

## In continuous integration

As a pre-commit hook of a repository that holds a model:

    repos:
      - repo: https://github.com/OWNER/decideploy
        rev: COMMIT
        hooks:
          - id: decideploy-verify
            args: [path/to/model]

In GitHub Actions, as annotations on the pull request and in code scanning:

    - run: decideploy verify "$MODEL" --manifest m.json --format github
    - run: decideploy verify "$MODEL" --format sarif > verify.sarif
      if: always()
    - uses: github/codeql-action/upload-sarif@COMMIT
      if: always()
      with:
        sarif_file: verify.sarif
"""

ENGINE_INTRODUCTION = """\
## What the engine does without these rules

Each fault is the only one in an otherwise whole demo model (bf16), which was then started with the
patched CPU build and the adapter; `tests/integration/record_faults.py` made the observations. The shift
is the largest change of a log-probability of the 24 slots against the whole model, over two prompts,
with and without the adapter.

| fault | code | the engine |
|---|---|---|
"""

ENGINE_END = """
`tests/integration/record_faults.py` writes the table's data again (`docs/verification-engine.json`), a
minute or two a fault. NVFP4 faults (a zero or missing input_scale, unequal gate and up, NaN group scales,
wrong exclusions) were not run: they need a GPU. The CPU build has no NVFP4 expert kernel for this model and
refuses even the whole one (`No NvFp4 MoE backend supports the deployment configuration`).
"""


def page(engine: list[dict[str, Any]]) -> str:
    """The whole document."""
    sections = [f"## {_title(subject.__doc__)}\n\n{_table(subject.RULES.rules)}" for subject in SUBJECTS]
    rows = "".join(_engine_row(entry) for entry in engine)
    return "\n".join([INTRODUCTION, *sections, ENGINE_INTRODUCTION + rows + ENGINE_END])


def _title(text: str | None) -> str:
    return (text or "").partition("\n")[0].rstrip(".").partition(":")[0]


def _table(rules: list[Rule]) -> str:
    rows = [f"| `{r.code}`{_marks(r)} | {first_line(r)} | {r.consequence} | {r.next_step} |" for r in rules]
    return "\n".join(["| code | demands | otherwise | remedy |", "|---|---|---|---|", *rows, ""])


def _marks(rule: Rule) -> str:
    marks: list[str] = [rule.severity] if rule.severity == "warning" else []
    marks += ["--deep"] if rule.deep else []
    return f" ({', '.join(marks)})" if marks else ""


def _engine_row(entry: dict[str, Any]) -> str:
    code, _, name = entry["fault"].partition(":")
    return f"| {name} | `{code}` | {_behaviour(entry)} |\n"


def _behaviour(entry: dict[str, Any]) -> str:
    if entry["engine"] == "fails":
        return f"fails while it loads: `{entry['error']}`"
    if entry["shift_nats"] is None:
        return "starts and answers, **with NaN instead of numbers**"
    if entry["shift_nats"] == 0:
        return "starts and answers **as if the setting were not there**"
    return f"starts and answers **wrongly**, by up to {entry['shift_nats']:.2f} nats"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when it is not current")
    options = parser.parse_args()
    wanted = page(json.loads(ENGINE.read_text("utf-8")))
    if options.check:
        current = PAGE.is_file() and PAGE.read_text("utf-8") == wanted
        if not current:
            print(f"{PAGE} is not current; run {Path(__file__).name}", file=sys.stderr)
        return 0 if current else 1
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
