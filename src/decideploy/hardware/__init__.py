"""What hardware is here, and which FP4 kernel path it takes."""

from decideploy.hardware.cards import Card, card_report, known_cards, load_hardware
from decideploy.hardware.kernels import (
    KernelPath,
    MinimumVersions,
    attention_backend,
    kernel_path,
    minimum_versions,
    own_attention,
)
from decideploy.hardware.probe import probe
from decideploy.hardware.report import (
    Gpu,
    HardwareReport,
    Holder,
    Host,
    KernelTrial,
    Reading,
    SmokeTest,
    load_report,
    print_report,
)

__all__ = [
    "Card",
    "Gpu",
    "HardwareReport",
    "Holder",
    "Host",
    "KernelPath",
    "KernelTrial",
    "MinimumVersions",
    "Reading",
    "SmokeTest",
    "attention_backend",
    "card_report",
    "kernel_path",
    "known_cards",
    "load_hardware",
    "load_report",
    "minimum_versions",
    "own_attention",
    "print_report",
    "probe",
]
