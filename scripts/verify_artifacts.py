#!/usr/bin/env python3
"""Check a model's files with no engine installed: the same check as ``decideploy verify``.

A local folder needs numpy, pydantic, rich and tokenizers; a hub id needs huggingface-hub and its HTTP client
too, and --verify-key needs model-signing. The package itself need not be installed.
Exit status 0 when nothing is wrong, 5 when something is, 2 when the arguments are or a package is missing.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

PACKAGES = ("numpy", "pydantic", "rich", "tokenizers")


def main() -> int:
    """Parse the arguments, verify, report."""
    try:
        return _verify()
    except ModuleNotFoundError as error:
        needed = (error.name or "a package").partition(".")[0]
        missing = sorted({needed} | {name for name in PACKAGES if find_spec(name) is None})
        print(
            f"error: {needed} is not installed here; run `pip install {' '.join(missing)}`", file=sys.stderr
        )
        return 2


def _verify() -> int:
    # Imported late, so that a missing package is one line and not a traceback.
    from decideploy.artifacts import FORMATS, verify_named, write_report  # noqa: PLC0415
    from decideploy.errors import Error, VerificationError  # noqa: PLC0415

    options = _options(FORMATS)
    try:
        verification = verify_named(
            options.model,
            revision=options.revision,
            adapter=options.adapter,
            deep=options.deep,
            manifest=options.manifest,
            verify_key=options.verify_key,
        )
    except Error as error:
        print(error, file=sys.stderr)
        return error.exit_code
    write_report(verification, "json" if options.json else options.format)
    return VerificationError.exit_code if verification.errors else 0


def _options(formats: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Check a decision model's files before any engine sees them."
    )
    parser.add_argument("model", help="the model's folder, or a hub id with --revision")
    parser.add_argument("--adapter", type=Path, help="adapter folder; default MODEL/adapter_vllm")
    parser.add_argument("--revision", help="commit id (40 hexadecimal digits) of a hub id")
    parser.add_argument("--deep", action="store_true", help="also read every weight")
    parser.add_argument("--format", choices=formats, default="table", help="how to report")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--manifest", type=Path, help="also compare every file with a manifest")
    parser.add_argument("--verify-key", type=Path, help="public key of the manifest's signature")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
