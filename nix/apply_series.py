"""Apply the series exactly to each upstream wheel named on the command line, and write nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from decideploy.build import apply_series, read_series
from decideploy.build.zip_archive import open_zip
from decideploy.pins import data_root

series = read_series(data_root())
for name in sys.argv[1:]:
    with open_zip(Path(name)) as wheel:
        changed = apply_series(series, wheel.read)
    print(f"{len(series)} patches change {len(changed)} files of {Path(name).name}")
