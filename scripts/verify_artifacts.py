#!/usr/bin/env python3
"""Check a model's files with no engine installed: the same check as ``decideploy verify``.

Exit status 0 when nothing is wrong, 5 when something is, 2 when the arguments are.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from decideploy.artifacts import print_verification, resolve_model, to_json, verify
from decideploy.errors import Error, VerificationError


def main() -> int:
    """Parse the arguments, verify, report."""
    parser = argparse.ArgumentParser(
        description="Check a decision model's files before any engine sees them."
    )
    parser.add_argument("model", help="the model's folder, or a hub id with --revision")
    parser.add_argument("--adapter", type=Path, help="adapter folder; default MODEL/adapter_vllm")
    parser.add_argument("--revision", help="commit id (40 hexadecimal digits) of a hub id")
    parser.add_argument("--deep", action="store_true", help="also read every weight")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    try:
        model = resolve_model(options.model, revision=options.revision)
        verification = verify(model, adapter=options.adapter, deep=options.deep)
    except Error as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(to_json(verification), indent=2))
    else:
        print_verification(verification)
    return VerificationError.exit_code if verification.errors else 0


if __name__ == "__main__":
    sys.exit(main())
