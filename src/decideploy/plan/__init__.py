"""From model facts and hardware to one launch plan: kernel path, memory, argv and environment. Pure."""

from decideploy.plan.argv import ADAPTER_NAME
from decideploy.plan.correction import Correction
from decideploy.plan.diagram import draw_memory
from decideploy.plan.launch_plan import LaunchPlan, plan
from decideploy.plan.memory import MemoryPlan, MemoryTerm
from decideploy.plan.reconcile import Observed, Reconciliation, reconcile
from decideploy.plan.starts import StartRecord, append_record, corrections, make_record, starts_folder
from decideploy.plan.table import print_plan, print_reconciliation
from decideploy.plan.workload import Workload

__all__ = [
    "ADAPTER_NAME",
    "Correction",
    "LaunchPlan",
    "MemoryPlan",
    "MemoryTerm",
    "Observed",
    "Reconciliation",
    "StartRecord",
    "Workload",
    "append_record",
    "corrections",
    "draw_memory",
    "make_record",
    "plan",
    "print_plan",
    "print_reconciliation",
    "reconcile",
    "starts_folder",
]
