"""Typed decisions: template, read-out, calibration, strategies, thinking; pure, no engine imported.

The HTTP routes over :class:`DecideService` are in :mod:`decideploy.api`.
"""

from decideploy.decide.calibration import Calibration
from decideploy.decide.client import ask, post_decision, print_decision, read_state
from decideploy.decide.decision import Decision, TokenCounts
from decideploy.decide.encoder import PromptEncoder
from decideploy.decide.engine import ADAPTER_NAME, Engine, Generation, Prompt, Reading
from decideploy.decide.head import DecisionHead
from decideploy.decide.prompts import PromptWriter
from decideploy.decide.readout import allowed_token_ids, read_out
from decideploy.decide.schema import (
    DecideRequest,
    DecideResponse,
    ErrorEnvelope,
    InfoResponse,
    RequestError,
    parse_request,
)
from decideploy.decide.service import DecideService
from decideploy.decide.slots import Kind
from decideploy.decide.template import render

__all__ = [
    "ADAPTER_NAME",
    "Calibration",
    "DecideRequest",
    "DecideResponse",
    "DecideService",
    "Decision",
    "DecisionHead",
    "Engine",
    "ErrorEnvelope",
    "Generation",
    "InfoResponse",
    "Kind",
    "Prompt",
    "PromptEncoder",
    "PromptWriter",
    "Reading",
    "RequestError",
    "TokenCounts",
    "allowed_token_ids",
    "ask",
    "parse_request",
    "post_decision",
    "print_decision",
    "read_out",
    "read_state",
    "render",
]
