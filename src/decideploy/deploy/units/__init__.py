"""Files that run ``decideploy serve`` on one machine: a systemd unit, Quadlet files, a Compose file."""

from decideploy.deploy.units.compose import compose_files
from decideploy.deploy.units.install import WrittenFile, hidden_faults, service_faults, write_files
from decideploy.deploy.units.quadlet import quadlet_files, secret_name
from decideploy.deploy.units.service import NAME, STATE_FOLDER, Kind, Service, UnitFile
from decideploy.deploy.units.systemd import systemd_files

__all__ = [
    "NAME",
    "STATE_FOLDER",
    "Kind",
    "Service",
    "UnitFile",
    "WrittenFile",
    "compose_files",
    "hidden_faults",
    "quadlet_files",
    "secret_name",
    "service_faults",
    "systemd_files",
    "write_files",
]
