"""Launch one engine that serves both systems, prove its answers, and stop it cleanly."""

from decideploy.serve.doctor import DoctorCheck, DoctorReport, doctor, print_doctor
from decideploy.serve.launch import EngineProcess, check_port
from decideploy.serve.selftest import Check, SelfTestError, SelfTestReport, print_selftest, selftest
from decideploy.serve.stages import ServeOptions, ServeResult, serve, state_folder

__all__ = [
    "Check",
    "DoctorCheck",
    "DoctorReport",
    "EngineProcess",
    "SelfTestError",
    "SelfTestReport",
    "ServeOptions",
    "ServeResult",
    "check_port",
    "doctor",
    "print_doctor",
    "print_selftest",
    "selftest",
    "serve",
    "state_folder",
]
