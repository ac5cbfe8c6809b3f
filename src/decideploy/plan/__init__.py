"""From model facts and hardware to one launch plan: kernel path, memory, argv and environment. Pure."""

from decideploy.plan.launch_plan import ADAPTER_NAME, LaunchPlan, plan
from decideploy.plan.memory import MemoryPlan, MemoryTerm
from decideploy.plan.reconcile import Reconciliation, reconcile
from decideploy.plan.table import print_plan
from decideploy.plan.workload import Workload

__all__ = [
    "ADAPTER_NAME",
    "LaunchPlan",
    "MemoryPlan",
    "MemoryTerm",
    "Reconciliation",
    "Workload",
    "plan",
    "print_plan",
    "reconcile",
]
