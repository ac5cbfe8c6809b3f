"""``decideploy`` whose ``serve`` looks at the model's files and goes on whatever it finds.

python unverified_serve.py serve MODEL …
"""

import sys

from decideploy.artifacts import Verification
from decideploy.cli import main

if __name__ == "__main__":
    Verification.raise_for_issues = lambda self: None
    sys.exit(main())
