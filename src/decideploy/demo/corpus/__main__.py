"""Print decisions with their right answers, as ``decideploy calibrate`` reads them.

python -m decideploy.demo.corpus --phrases held-out --words train --count 300 > held-out.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice

from decideploy.demo.corpus import Decision, Part, decisions


def main(argv: Sequence[str] | None = None) -> int:
    """Print one decision a line."""
    parser = argparse.ArgumentParser(prog="python -m decideploy.demo.corpus", description=__doc__)
    parser.add_argument("--phrases", type=Part, choices=list(Part), default=Part.HELD_OUT, help="templates")
    parser.add_argument("--words", type=Part, choices=list(Part), default=Part.TRAIN, help="what fills them")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another seed, other decisions")
    options = parser.parse_args(argv)
    drawn = decisions(options.seed, phrases=options.phrases, words=options.words)
    for decision in islice(drawn, options.count):
        print(labelled(decision))
    return 0


def labelled(decision: Decision) -> str:
    """The request and the index of its right answer, as one line of JSON."""
    fields = decision.request.model_dump(include={"kind", "state", "question", "options"}, exclude_none=True)
    return json.dumps(fields | {"label": decision.label}, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
