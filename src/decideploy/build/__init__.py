"""Build: the patch series, the patched wheel, its provenance, and the check of what is installed."""

from decideploy.build.apply import apply_series, apply_to_tree
from decideploy.build.builder import BuildResult, PatchInfo, build
from decideploy.build.installed import InstalledBuild, check_installed
from decideploy.build.series import Patch, lint_series, read_series
from decideploy.build.wheel import PackedWheel, leave_out, repack, wheel_filename

__all__ = [
    "BuildResult",
    "InstalledBuild",
    "PackedWheel",
    "Patch",
    "PatchInfo",
    "apply_series",
    "apply_to_tree",
    "build",
    "check_installed",
    "leave_out",
    "lint_series",
    "read_series",
    "repack",
    "wheel_filename",
]
