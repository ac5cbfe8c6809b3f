"""The model's files: verification, facts, and the adapter that the engine can load."""

from decideploy.artifacts.access import check_access
from decideploy.artifacts.convert import ConvertResult, convert_adapter
from decideploy.artifacts.facts import AdapterFacts, ModelFacts
from decideploy.artifacts.hub import HubModel, lock_hub, split_hub_id, verify_hub
from decideploy.artifacts.issue import Issue
from decideploy.artifacts.manifest import Manifest, lock_folder
from decideploy.artifacts.named import lock_named, verify_named
from decideploy.artifacts.published import published_models, sizes_of
from decideploy.artifacts.report import (
    FORMATS,
    github_annotations,
    print_verification,
    to_json,
    to_sarif,
    write_report,
)
from decideploy.artifacts.resolve import resolve_model
from decideploy.artifacts.signing import sign_manifest, verify_signature
from decideploy.artifacts.verification import Verification, verify

__all__ = [
    "FORMATS",
    "AdapterFacts",
    "ConvertResult",
    "HubModel",
    "Issue",
    "Manifest",
    "ModelFacts",
    "Verification",
    "check_access",
    "convert_adapter",
    "github_annotations",
    "lock_folder",
    "lock_hub",
    "lock_named",
    "print_verification",
    "published_models",
    "resolve_model",
    "sign_manifest",
    "sizes_of",
    "split_hub_id",
    "to_json",
    "to_sarif",
    "verify",
    "verify_hub",
    "verify_named",
    "verify_signature",
    "write_report",
]
