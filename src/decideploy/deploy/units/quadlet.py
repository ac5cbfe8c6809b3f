"""The Quadlet files: Podman makes a systemd service of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from decideploy.deploy.units import container
from decideploy.deploy.units.service import NAME, STATE_FOLDER, Service, UnitFile
from decideploy.deploy.units.systemd import unit_head, unit_restart
from decideploy.deploy.units.words import assignment, specifiers, word, words

_VOLUME: Final = f"{NAME}.volume"


def quadlet_files(service: Service, *, config: Path) -> tuple[UnitFile, ...]:
    """Container and volume; ``config`` is the configuration folder of the user, /etc without one."""
    folder = config / "containers" / "systemd"
    return (
        UnitFile(path=folder / f"{NAME}.container", text=_container(service)),
        UnitFile(path=folder / _VOLUME, text=f"[Volume]\nVolumeName={NAME}\n"),
    )


def secret_name(name: str) -> str:
    """Podman's name of the secret that the container sees as ``name``."""
    return f"{NAME}-{name}"


def _container(service: Service) -> str:
    sections = (
        unit_head(service),
        "\n".join(("[Container]", *_keys(service), "")),
        "\n".join(
            (
                "[Service]",
                f"TimeoutStartSec={service.start_timeout_s or 'infinity'}",
                # Podman stops the container first; systemd waits a little longer than Podman does.
                f"TimeoutStopSec={service.stop_timeout_s + 10}",
                *unit_restart(service),
                "",
            )
        ),
        f"[Install]\nWantedBy={'default' if service.user else 'multi-user'}.target\n",
    )
    return "\n".join(sections)


def _keys(service: Service) -> Iterator[str]:
    uid, gid = container.USER.split(":")
    yield f"Image={service.image}"
    yield f"ContainerName={NAME}"
    yield f"Exec={words(container.container_command(service))}"
    for name, value in container.container_environment(service).items():
        yield f"Environment={assignment(name, value)}"
    yield f"User={uid}"
    yield f"Group={gid}"
    # The server itself says when it is ready.
    yield "Notify=true"
    yield f"PublishPort={container.published(service)}"
    yield "ReadOnly=true"
    yield "DropCapability=all"
    yield "NoNewPrivileges=true"
    yield f"Volume={_VOLUME}:{STATE_FOLDER}"
    for target, source in service.mounts.items():
        yield f"Volume={specifiers(str(source))}:{target}:ro"
    for name, file in (("api-keys", service.api_key_file), ("hub-token", service.hub_token_file)):
        if file:
            yield f"Secret={secret_name(name)},type=mount,target={name},uid={uid},gid={gid},mode=0400"
    yield f"ShmSize={container.SHM_BYTES}"
    yield "Ulimit=memlock=-1:-1"
    yield f"Ulimit=nofile={container.OPEN_FILES}:{container.OPEN_FILES}"
    if service.recipe == "cuda":
        yield from (f"AddDevice=nvidia.com/gpu={index}" for index in range(service.gpu_count))
    # As JSON it is a list of words, which no shell reads.
    yield f"HealthCmd={word(json.dumps(['CMD', *container.HEALTH_COMMAND]))}"
    yield f"HealthInterval={container.HEALTH_INTERVAL_S}s"
    yield f"HealthTimeout={container.HEALTH_TIMEOUT_S}s"
    yield f"HealthRetries={container.HEALTH_RETRIES}"
    yield f"HealthStartPeriod={container.HEALTH_START_S}s"
    yield f"StopTimeout={service.stop_timeout_s}"
