"""``decideploy`` with every stage before the engine replaced and fake replicas for engines.

python serve_replicas_fakes.py serve --replicas 2 …   The model's name is what the fake is told to be.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "plan")]

from plan_facts import facts_small  # noqa: E402

import decideploy.artifacts  # noqa: E402
import decideploy.build  # noqa: E402
from decideploy.cli import main  # noqa: E402
from decideploy.errors import VerificationError  # noqa: E402
from decideploy.serve import stages  # noqa: E402

FAKE = HERE / "fake_replica.py"


def verify(model: Path, adapter: Path | None) -> Any:
    if model.name == "faulty":
        raise VerificationError("the model has a fault", issues=(), where=str(model))
    facts = facts_small(architecture="Gemma4ForConditionalGeneration", path=model)
    return SimpleNamespace(issues=(), raise_for_issues=lambda: None, known_facts=lambda: facts)


def plan(facts: Any, hardware: Any, *, workload: Any, corrections: Any) -> Any:
    launch = real_plan(facts, hardware, workload=workload, corrections=corrections)
    return replace(launch, argv=(sys.executable, str(FAKE), str(workload.port), facts.path.name))


real_plan, stages.plan = stages.plan, plan
decideploy.build.check_installed = lambda: SimpleNamespace(version="0.30.0+cpu.test", recipe="cpu")
decideploy.artifacts.resolve_model = lambda model, revision: Path(model)
decideploy.artifacts.check_access = lambda model, revision: str(model)
decideploy.artifacts.verify = verify
# As many cores as are asked for.
os.sched_getaffinity = lambda _pid: set(range(8))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
