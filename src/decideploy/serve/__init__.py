"""Launch one engine that serves both systems, prove its answers, and stop it cleanly."""

from decideploy.serve.doctor import DoctorCheck, DoctorReport, doctor, print_doctor
from decideploy.serve.golden import Golden, golden_of
from decideploy.serve.launch import EngineProcess, check_port
from decideploy.serve.selftest import (
    Check,
    SelfTestError,
    SelfTestReport,
    print_selftest,
    record_golden,
    selftest,
)
from decideploy.serve.stages import ServeOptions, ServeResult, serve, state_folder

__all__ = [
    "Check",
    "DoctorCheck",
    "DoctorReport",
    "EngineProcess",
    "Golden",
    "SelfTestError",
    "SelfTestReport",
    "ServeOptions",
    "ServeResult",
    "check_port",
    "doctor",
    "golden_of",
    "print_doctor",
    "print_selftest",
    "record_golden",
    "selftest",
    "serve",
    "state_folder",
]
