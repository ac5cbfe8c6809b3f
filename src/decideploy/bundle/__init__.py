"""Bundle: all that a host without a network needs, in parts that join and verify, with its installer."""

from decideploy.bundle.builder import BundleOptions, BundleResult, bundle
from decideploy.bundle.manifest import BundleManifest

__all__ = ["BundleManifest", "BundleOptions", "BundleResult", "bundle"]
