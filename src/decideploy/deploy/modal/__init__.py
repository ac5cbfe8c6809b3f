"""What ``modal_app.py`` calls: settings, staging, weights and the served process. Modal is not imported."""

from decideploy.deploy.modal.config import CONFIG_FILE, ModalConfig, load_config
from decideploy.deploy.modal.offers import GpuOffer, Offers, Regions, offers
from decideploy.deploy.modal.server import ServedModel, serve_command
from decideploy.deploy.modal.staging import check_control_plane, lock_filename, staged_wheel, uv_version
from decideploy.deploy.modal.weights import fill, verified_model

__all__ = [
    "CONFIG_FILE",
    "GpuOffer",
    "ModalConfig",
    "Offers",
    "Regions",
    "ServedModel",
    "check_control_plane",
    "fill",
    "load_config",
    "lock_filename",
    "offers",
    "serve_command",
    "staged_wheel",
    "uv_version",
    "verified_model",
]
