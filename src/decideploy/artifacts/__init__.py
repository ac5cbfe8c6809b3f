"""The model's files: verification, facts, and the adapter that the engine can load."""

from decideploy.artifacts.convert import ConvertResult, convert_adapter
from decideploy.artifacts.facts import AdapterFacts, ModelFacts
from decideploy.artifacts.issue import Issue
from decideploy.artifacts.report import print_verification, to_json
from decideploy.artifacts.resolve import resolve_model
from decideploy.artifacts.verification import Verification, verify

__all__ = [
    "AdapterFacts",
    "ConvertResult",
    "Issue",
    "ModelFacts",
    "Verification",
    "convert_adapter",
    "print_verification",
    "resolve_model",
    "to_json",
    "verify",
]
