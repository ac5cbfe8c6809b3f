"""Every expert kernel that would be planned on this GPU, by numbers, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from expert_layer import BOUNDS, error, make_layer, reference

from decideploy.hardware import kernel_path
from decideploy.hardware.kernels import backends

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("run_expert_layer.py")


def test_planned_kernels_compute_what_the_codes_stand_for(hardware, figure, tmp_path):
    (gpu, *_) = hardware.visible_gpus
    wanted, faults = reference(make_layer()), []
    for name in kernel_path(gpu.compute_capability.value, packages=hardware.host.packages.value).order:
        out = tmp_path / f"{name}.npy"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, str(PROGRAM), name, str(out)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        found = error(np.load(out), wanted) if done.returncode == 0 else float("inf")
        figure(f"expert layer by {name}, relative error", round(found, 4))
        if found > BOUNDS[backends()[name].activation] or f"KERNEL {backends()[name].log}" not in done.stdout:
            faults.append(f"{name}: {found}, {done.stderr[-2000:]}")
    assert not faults, "\n".join(faults)
