"""Attest: sign what was built with a local key, and check it against lock, provenance and bill."""

from decideploy.attest.artifact import Attestation, attest
from decideploy.attest.verify import BuildCheck, verify_build

__all__ = ["Attestation", "BuildCheck", "attest", "verify_build"]
