import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_hardware_is_what_the_tables_and_the_plan_give() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write_hardware_docs.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0
