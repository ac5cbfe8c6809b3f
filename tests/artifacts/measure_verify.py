"""Verify one folder in a process of its own and print wall and CPU seconds, peak memory and codes as JSON.

Run as ``python measure_verify.py MODEL``; memory is the process's peak resident set, interpreter included.
"""

import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

started = time.perf_counter()
from decideploy.artifacts import verify  # noqa: E402

imported, imported_cpu = time.perf_counter(), time.process_time()
verification = verify(Path(sys.argv[1]))
done, done_cpu = time.perf_counter(), time.process_time()
# Not getrusage: its peak survives exec and would be the parent's.
peak_bytes = int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(
    json.dumps(
        {
            "import_s": imported - started,
            "verify_s": done - imported,
            "cpu_s": done_cpu - imported_cpu,
            "peak_bytes": peak_bytes,
            "codes": sorted({issue.code for issue in verification.issues}),
        }
    )
)
