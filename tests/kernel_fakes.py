"""Processes of the kernel test that never ran: what each leaves behind, and which were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decideploy.hardware.kernels import backends
from decideploy.hardware.smoke import Ended
from decideploy.hardware.smoke_layer import make_layer, reference

RIGHT = "right"
FAULTS = {
    "crash": Ended(status=1, stderr="[rank0]: ValueError: no nvcc\n[rank0]: Warning: not destroyed\n"),
    "killed": Ended(status=-9, stderr=""),
    "timeout": Ended(status=None, stderr="compiling"),
    "silent": Ended(status=0, stderr=""),
}


@dataclass
class FakeKernels:
    """``kinds`` by backend: RIGHT, wrong, nan, other or a key of FAULTS; what is not named is right."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str], env: Mapping[str, str]) -> Ended:
        backend, dtype, out = command[-3:]
        self.asked.append(backend)
        self.dtypes.append(dtype)
        self.environments.append(env)
        kind = self.kinds.get(backend, RIGHT)
        if kind in FAULTS:
            return FAULTS[kind]
        np.savez(out, **_left(backend, kind))
        return Ended(status=0, stderr="")


def _left(backend: str, kind: str) -> dict[str, Any]:
    output = reference(make_layer())
    if kind == "wrong":
        output = output * 2
    if kind == "nan":
        output[-1, -1] = np.nan
    return {"output": output, "kernel": "OTHER" if kind == "other" else backends()[backend].log}
