"""Launch one engine that serves both systems, prove its answers, and stop it cleanly."""

from decideploy.serve.doctor import DoctorCheck, DoctorReport, doctor, print_doctor
from decideploy.serve.golden import Golden, golden_of
from decideploy.serve.launch import EngineProcess, check_port
from decideploy.serve.replicas import RestartRequest, ask_for_restart, serve_replicas
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
    "RestartRequest",
    "SelfTestError",
    "SelfTestReport",
    "ServeOptions",
    "ServeResult",
    "ask_for_restart",
    "check_port",
    "doctor",
    "golden_of",
    "print_doctor",
    "print_selftest",
    "record_golden",
    "selftest",
    "serve",
    "serve_replicas",
    "state_folder",
]
