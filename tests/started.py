"""What a starting server tells."""

import json
from pathlib import Path
from subprocess import Popen
from typing import Any


def read_started(process: "Popen[str]", stages: Path) -> dict[str, Any]:
    """The document that ``serve --json`` prints when ready; a failure shows all that it told instead.

    ``stages`` is the file that its standard error goes to.
    """
    line = process.stdout.readline()
    # A ready server's document is one line, that of a fault has many.
    assert line.endswith("}\n"), line + process.stdout.read() + stages.read_text("utf-8")
    return json.loads(line)
