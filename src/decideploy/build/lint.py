"""``python -m decideploy.build.lint``: report every fault of the patch series, for pre-commit and CI."""

from __future__ import annotations

import sys

from decideploy.build.series import lint_series
from decideploy.errors import PatchError
from decideploy.pins import data_root


def main() -> int:
    """Print the faults of ``patches/`` to stderr; return 4 if there are any, else 0."""
    faults = lint_series(data_root())
    for fault in faults:
        print(fault, file=sys.stderr)
    return PatchError.exit_code if faults else 0


if __name__ == "__main__":
    sys.exit(main())
