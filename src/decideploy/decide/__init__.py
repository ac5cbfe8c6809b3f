"""Typed decisions: template, read-out, calibration and their wire types; pure, no engine imported.

The HTTP routes are in :mod:`decideploy.decide.routes`, which needs FastAPI and is not imported here.
"""

from decideploy.decide.calibration import Calibration
from decideploy.decide.client import ask, post_decision, print_decision, read_state
from decideploy.decide.core import ADAPTER_NAME, Engine, decide
from decideploy.decide.encoder import PromptEncoder
from decideploy.decide.head import DecisionHead
from decideploy.decide.readout import allowed_token_ids, read_out
from decideploy.decide.schema import (
    DecideRequest,
    DecideResponse,
    ErrorEnvelope,
    InfoResponse,
    RequestError,
    parse_request,
)
from decideploy.decide.slots import Kind
from decideploy.decide.template import render

__all__ = [
    "ADAPTER_NAME",
    "Calibration",
    "DecideRequest",
    "DecideResponse",
    "DecisionHead",
    "Engine",
    "ErrorEnvelope",
    "InfoResponse",
    "Kind",
    "PromptEncoder",
    "RequestError",
    "allowed_token_ids",
    "ask",
    "decide",
    "parse_request",
    "post_decision",
    "print_decision",
    "read_out",
    "read_state",
    "render",
]
