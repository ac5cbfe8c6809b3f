"""Verify one folder in a process of its own and print seconds, peak memory and codes as JSON.

Run as ``python measure_verify.py MODEL``; memory is the process's peak resident set, interpreter included.
"""

import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

started = time.perf_counter()
from decideploy.artifacts import verify  # noqa: E402

imported = time.perf_counter()
verification = verify(Path(sys.argv[1]))
done = time.perf_counter()
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(
    json.dumps(
        {
            "import_s": imported - started,
            "verify_s": done - imported,
            "peak_bytes": peak_bytes,
            "codes": sorted({issue.code for issue in verification.issues}),
        }
    )
)
