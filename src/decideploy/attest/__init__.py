"""Attest: sign what was built with a local key, and check an artifact against its lock and its papers."""

from decideploy.attest.papers import Attestation, attest
from decideploy.attest.verify import BuildCheck, verify_build

__all__ = ["Attestation", "BuildCheck", "attest", "verify_build"]
