"""Every expert kernel to be planned on this GPU, by numbers, and the probe that names the right one."""

import json
import subprocess
import sys

import pytest

from decideploy.hardware import kernel_path
from decideploy.hardware.smoke import try_kernels
from decideploy.serve.launch import engine_environment

pytestmark = pytest.mark.gpu


def test_planned_kernels_compute_what_the_codes_stand_for(hardware, figure):
    (gpu, *_) = hardware.visible_gpus
    path = kernel_path(gpu.compute_capability.value, packages=hardware.host.packages.value)
    faults = []
    for name in path.usable:
        tested = try_kernels(hardware, gpu, (name,), dtype=path.dtype, env=engine_environment({}))
        (trial,) = tested.smoke_test.value.trials
        figure(f"expert layer by {name}", str(trial))
        if trial.verdict != "right":
            faults.append(str(trial))
    assert not faults, "\n".join(faults)


def test_the_probe_names_the_kernel_that_is_right(figure):
    command = (sys.executable, "-P", "-m", "decideploy", "probe", "--json")
    done = subprocess.run(
        command, env=engine_environment({}), capture_output=True, text=True, timeout=400, check=True
    )
    reading = json.loads(done.stdout)["smoke_test"]
    figure("probe, expert kernels", json.dumps(reading))
    assert reading["value"] is not None, reading["source"]
    assert reading["value"]["trials"][-1]["verdict"] == "right"
