"""What is to run on one machine, whoever runs it: systemd, Podman or Compose."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from decideploy.deploy.stopping import stop_timeout_s

Kind = Literal["systemd", "quadlet", "compose"]

NAME: Final = "decideploy"
STATE_FOLDER: Final = Path("/var/lib/decideploy")
"""The one folder that is written to: of the unit and inside the images alike."""

# Verification and the plan, before the engine's own limit begins; then its self-test.
_BEFORE_LAUNCH_S: Final = 1800
_SELFTEST_S: Final = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """One ``decideploy serve``.

    ``arguments`` are its own, less address and key file; ``mounts`` are the host's paths that it reads, by
    their place in a container, which its arguments then name. ``fetches`` is whether the model comes from
    the hub at the first start, ``replicas`` whether several engines stand behind HAProxy. ``recipe`` is that
    of the build: only "cuda" is given GPUs. Times are in seconds.
    """

    kind: Kind
    recipe: Literal["cpu", "cuda"]
    arguments: tuple[str, ...]
    host: str
    port: int
    drain_s: int
    startup_timeout_s: float
    restart: Literal["never", "on-failure"]
    max_restarts: int
    fetches: bool = False
    api_key_file: Path | None = None
    hub_token_file: Path | None = None
    access_log: Path | None = None
    mounts: dict[str, Path] = field(default_factory=dict)
    image: str = ""
    gpu_count: int = 1
    replicas: bool = False
    user: bool = False

    @property
    def start_timeout_s(self) -> int | None:
        """How long a start may take; None where a download decides it."""
        if self.fetches:
            return None
        # The first replica starts alone, then the others at once.
        launches = 2 if self.replicas else 1
        return int(_BEFORE_LAUNCH_S + launches * (self.startup_timeout_s + _SELFTEST_S))

    @property
    def stop_timeout_s(self) -> int:
        """How long a stop may take."""
        return stop_timeout_s(self.drain_s)

    @property
    def restarts(self) -> bool:
        """Whether what ended by a fault is started again."""
        return self.restart == "on-failure"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitFile:
    """One file to write, at an absolute path."""

    path: Path
    text: str
    mode: int = 0o644
