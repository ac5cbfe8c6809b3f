"""The Compose file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from decideploy.deploy.units import container
from decideploy.deploy.units.service import NAME, STATE_FOLDER, Service, UnitFile


def compose_files(service: Service, *, folder: Path) -> tuple[UnitFile, ...]:
    """``compose.yaml`` in ``folder``."""
    document = {
        "name": NAME,
        "services": {NAME: _service(service)},
        "volumes": {"state": {}},
        **({"secrets": secrets} if (secrets := _secret_files(service)) else {}),
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return (UnitFile(path=folder / "compose.yaml", text=text),)


def _service(service: Service) -> dict[str, Any]:
    return {
        "image": service.image,
        "command": [_literal(text) for text in container.container_command(service)],
        "environment": container.container_environment(service),
        "user": container.USER,
        "ports": [container.published(service)],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "volumes": [
            {"type": "volume", "source": "state", "target": str(STATE_FOLDER)},
            *(_bind(source, target) for target, source in service.mounts.items()),
        ],
        **({"secrets": list(secrets)} if (secrets := _secret_files(service)) else {}),
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "shm_size": container.SHM_BYTES,
        "ulimits": {"memlock": -1, "nofile": container.OPEN_FILES, "core": 0},
        **({"deploy": _gpus(service.gpu_count)} if service.recipe == "cuda" else {}),
        "healthcheck": _healthcheck(),
        "stop_grace_period": f"{service.stop_timeout_s}s",
        "restart": f"on-failure:{service.max_restarts}" if service.restarts else "no",
    }


def _literal(text: str) -> str:
    """Compose puts variables in for ``$``."""
    return text.replace("$", "$$")


def _bind(source: Path, target: str) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": _literal(str(source)),
        "target": target,
        "read_only": True,
        "bind": {"create_host_path": False},
    }


def _secret_files(service: Service) -> dict[str, Any]:
    files = {"api-keys": service.api_key_file, "hub-token": service.hub_token_file}
    return {name: {"file": _literal(str(file))} for name, file in files.items() if file}


def _gpus(count: int) -> dict[str, Any]:
    device = {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
    return {"resources": {"reservations": {"devices": [device]}}}


def _healthcheck() -> dict[str, Any]:
    return {
        "test": ["CMD", *container.HEALTH_COMMAND],
        "interval": f"{container.HEALTH_INTERVAL_S}s",
        "timeout": f"{container.HEALTH_TIMEOUT_S}s",
        "retries": container.HEALTH_RETRIES,
        "start_period": f"{container.HEALTH_START_S}s",
    }
