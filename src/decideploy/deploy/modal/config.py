"""Every setting of the Modal deployment: one file, read alike on the deploying machine and in the container.

Nothing is read from the environment. A variable that is set on one side only would change which Modal objects
exist, and Modal's container stops when they differ from those that were deployed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from decideploy.deploy.modal.offers import offers
from decideploy.deploy.stopping import serve_stop_s, stop_timeout_s
from decideploy.errors import ConfigError
from decideploy.plan.workload import Workload

CONFIG_FILE: Final = Path("deploy") / "modal.toml"
DRAIN_S: Final = Workload().shutdown_timeout_s
"""Seconds that requests in flight may take after SIGTERM: what ``decideploy serve`` gives them."""

SERVE_STOP_S: Final = serve_stop_s(DRAIN_S)
"""Seconds that ``decideploy serve`` may take to stop."""

_STARTUP_MARGIN_S: Final = 60
_GIB: Final = 1024**3

ObjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class ModalConfig(BaseModel):
    """The contents of ``deploy/modal.toml``; times in seconds.

    ``gpus`` are alternatives, the preferred first. No ``compute_regions`` lets Modal choose freely.
    ``hub_secret`` names a Modal secret that holds HF_TOKEN, for a gated model. A container takes
    ``max_concurrency`` requests at once and Modal answers 429 above; more containers start above
    ``target_concurrency``. ``gpu_snapshot`` restores started containers from GPU memory snapshots.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    app_name: ObjectName = "decideploy"
    model: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    base_image: str = Field(pattern=r"^[\w./-]+:[\w.-]*devel[\w.-]*@sha256:[0-9a-f]{64}$")
    gpus: tuple[str, ...] = Field(min_length=1)
    gpu_count: int = Field(default=1, ge=1)
    routing_region: str
    compute_regions: tuple[str, ...] = ()
    hub_secret: ObjectName | None = None
    weights_volume: ObjectName = "decideploy-weights"
    cache_volume: ObjectName = "decideploy-cache"
    cpu_cores: float = Field(default=8.0, gt=0)
    memory_bytes: int = Field(default=48 * _GIB, ge=16 * _GIB)
    min_containers: int = Field(default=0, ge=0)
    max_containers: int = Field(ge=1)
    target_concurrency: int = Field(default=48, ge=1)
    max_concurrency: int = Field(default=64, ge=1)
    scaledown_window_s: int = Field(default=900, ge=60, le=3600)
    startup_timeout_s: int = Field(default=1800, ge=1200, le=3600)
    exit_grace_period_s: int = Field(default=SERVE_STOP_S + 60, le=3600)
    fill_timeout_s: int = Field(default=3600, ge=600, le=86_400)
    gpu_snapshot: bool = False

    @model_validator(mode="after")
    def _collect_faults(self) -> Self:
        if faults := list(_faults(self)):
            raise ValueError("; ".join(faults))
        return self

    @property
    def ready_timeout_s(self) -> int:
        """How long a start waits: less than Modal does, whose error would name only the time."""
        return self.startup_timeout_s - _STARTUP_MARGIN_S

    @property
    def engine_timeout_s(self) -> int:
        """How long ``serve`` waits for its engine: less again, for its error names the cause."""
        return self.ready_timeout_s - _STARTUP_MARGIN_S

    @property
    def gpu_requests(self) -> tuple[str, ...]:
        """The alternatives as Modal writes them, such as ``H200:2``."""
        return tuple(name if self.gpu_count == 1 else f"{name}:{self.gpu_count}" for name in self.gpus)


def _faults(config: ModalConfig) -> Iterator[str]:
    yield from _gpu_faults(config)
    yield from _region_faults(config)
    if config.min_containers > config.max_containers:
        yield f"min_containers {config.min_containers} is above max_containers {config.max_containers}"
    if config.target_concurrency > config.max_concurrency:
        yield f"target_concurrency {config.target_concurrency} is above max_concurrency, so 429 comes first"
    least = stop_timeout_s(DRAIN_S)
    if config.exit_grace_period_s < least:
        yield (
            f"exit_grace_period_s {config.exit_grace_period_s} would cut the drain short: "
            f"a stop may take {SERVE_STOP_S} s, so give {least} or more"
        )


def _gpu_faults(config: ModalConfig) -> Iterator[str]:
    known = offers().gpus
    for name in config.gpus:
        if name not in known:
            yield f"gpus: Modal offers no {name!r}; it offers {', '.join(known)}"
        elif config.gpu_count > known[name].max_count:
            yield f"gpu_count {config.gpu_count}: a container has at most {known[name].max_count} of {name}"
    if config.gpu_snapshot and config.gpu_count > 1:
        yield "gpu_snapshot works with one GPU only: set gpu_count to 1, or gpu_snapshot to false"


def _region_faults(config: ModalConfig) -> Iterator[str]:
    regions = offers().regions
    for name in config.compute_regions:
        if name not in regions.compute:
            yield f"compute_regions: no region {name!r}; known: {', '.join(regions.compute)}"
    if config.routing_region not in regions.routing:
        yield f"routing_region: no region {config.routing_region!r}; known: {', '.join(regions.routing)}"


def load_config(root: Path) -> ModalConfig:
    """Read ``deploy/modal.toml`` below ``root``; ConfigError names every key at fault."""
    path = root / CONFIG_FILE
    try:
        return ModalConfig.model_validate(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError as error:
        raise ConfigError(
            "there is no Modal configuration", where=str(path), next_step="restore it from the checkout"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", where=str(path)) from error
    except ValidationError as error:
        raise _config_error(error, path) from error


def _config_error(error: ValidationError, path: Path) -> ConfigError:
    faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
    revision_missing = any(key == "revision" for key, _ in faults)
    return ConfigError(
        "; ".join(f"{key}: {message}" if key else message for key, message in faults),
        where=str(path),
        next_step="write the model's commit, 40 hexadecimal digits, as revision"
        if revision_missing
        else "correct the keys named above; docs/modal.md explains each",
    )
