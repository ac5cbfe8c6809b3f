"""``python -m decideploy``."""

import sys

from decideploy.cli import main

sys.exit(main())
