"""The systemd unit: hardened, ready when ``serve`` is, killed when it works no more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from decideploy.deploy.units.service import NAME, STATE_FOLDER, Service, UnitFile
from decideploy.deploy.units.words import specifiers, word, words
from decideploy.errors import (
    CapacityError,
    ConfigError,
    IntegrityError,
    PatchError,
    ProbeError,
    VerificationError,
)

WATCHDOG_S: Final = 180
"""Seconds without a sign of work after which systemd ends the service; a stall turns it unready first."""

HIDDEN: Final = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))
"""What a system unit does not see."""

_RESTART_PAUSE_S: Final = 10
# A fault of these will be there at the next start too.
_LASTING: Final = (ConfigError, IntegrityError, PatchError, VerificationError, ProbeError, CapacityError)

# Every process may have these, also where the service manager is a user's own.
_SANDBOX: Final = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
UMask=0077
"""

# Kernels are compiled and loaded while serving, so memory may become executable; /proc tells sizes and flags.
_SYSTEM_SANDBOX: Final = """\
CapabilityBoundingSet=
AmbientCapabilities=
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
"""

_GPU_DEVICES: Final = """\
DevicePolicy=closed
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia-frontend rw
DeviceAllow=char-nvidia-uvm rw
DeviceAllow=char-nvidia-caps rw
"""
_NO_DEVICES: Final = "PrivateDevices=yes\nDevicePolicy=closed\n"


def systemd_files(service: Service, *, config: Path, state: Path) -> tuple[UnitFile, ...]:
    """The files of a system unit, or of a user's when ``service.user``.

    ``config`` is that user's configuration folder and ``state`` what is written to; a system unit has fixed
    ones.
    """
    if service.user:
        environment = config / NAME / f"{NAME}.env"
        return (
            UnitFile(path=config / "systemd" / "user" / f"{NAME}.service", text=_unit(service, environment)),
            UnitFile(path=environment, text=_environment(service, state)),
            UnitFile(path=config / "user-tmpfiles.d" / f"{NAME}.conf", text=_folders(state, owner="- -")),
        )
    environment = Path("/etc") / NAME / f"{NAME}.env"
    return (
        UnitFile(path=Path("/etc/systemd/system") / f"{NAME}.service", text=_unit(service, environment)),
        UnitFile(path=environment, text=_environment(service, STATE_FOLDER)),
        UnitFile(
            path=Path("/etc/tmpfiles.d") / f"{NAME}.conf", text=_folders(STATE_FOLDER, owner=f"{NAME} {NAME}")
        ),
        UnitFile(path=Path("/etc/sysusers.d") / f"{NAME}-user.conf", text=_account()),
    )


def _unit(service: Service, environment: Path) -> str:
    parts = (
        unit_head(service),
        _process(service, environment),
        "" if service.user else _privileges(service),
        f"[Install]\nWantedBy={'default' if service.user else 'multi-user'}.target\n",
    )
    return "\n".join(part for part in parts if part)


def unit_head(service: Service) -> str:
    """The section ``[Unit]``."""
    lines = ["[Unit]", "Description=Decisions by a verified and self-tested model"]
    if not service.user:
        lines += ["Wants=network-online.target", "After=network-online.target nvidia-persistenced.service"]
    if service.restarts and service.start_timeout_s:
        # Long enough to count starts that each fail only at their end.
        window_s = service.start_timeout_s * (service.max_restarts + 1)
        lines += [f"StartLimitIntervalSec={window_s}", f"StartLimitBurst={service.max_restarts + 1}"]
    return "\n".join((*lines, ""))


def _process(service: Service, environment: Path) -> str:
    lines = [
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"EnvironmentFile={specifiers(str(environment))}",
        *_credentials(service),
        f"ExecStart={_command(service)}",
        *_reload(service),
        f"TimeoutStartSec={service.start_timeout_s or 'infinity'}",
        f"TimeoutStopSec={service.stop_timeout_s}",
        f"WatchdogSec={WATCHDOG_S}",
        # A signal to the engine's own process would refuse the rest of what is in flight.
        "KillMode=mixed",
        # A stop while the engine loads ends as an interrupt does.
        "SuccessExitStatus=130",
        *unit_restart(service),
        "LimitCORE=0",
        "LimitNOFILE=65536",
        *(["LimitMEMLOCK=infinity"] if service.recipe == "cuda" and not service.user else []),
        "OOMPolicy=stop",
    ]
    return "\n".join(lines) + "\n" + _SANDBOX


def _command(service: Service) -> str:
    address = ("--host", service.host, "--port", str(service.port))
    command = words((sys.executable, "-m", "decideploy", "serve", *service.arguments, *address))
    return f"{command} --api-key-file %d/api-keys" if service.api_key_file else command


def _reload(service: Service) -> Iterator[str]:
    """``systemctl reload`` renews the replicas one at a time; it may take as long as a start."""
    if service.replicas:
        command = (sys.executable, "-m", "decideploy", "rolling-restart", "--port", str(service.port))
        yield f"ExecReload={words(command)}"


def _credentials(service: Service) -> Iterator[str]:
    if service.api_key_file:
        yield f"LoadCredential=api-keys:{specifiers(str(service.api_key_file))}"
    if service.hub_token_file:
        yield f"LoadCredential=hub-token:{specifiers(str(service.hub_token_file))}"
        yield "Environment=HF_TOKEN_PATH=%d/hub-token"


def unit_restart(service: Service) -> Iterator[str]:
    """The keys that say whether a fault starts the service anew."""
    if not service.restarts:
        yield "Restart=no"
        return
    yield "Restart=on-failure"
    yield f"RestartSec={_RESTART_PAUSE_S}"
    yield f"RestartPreventExitStatus={' '.join(str(kind.exit_code) for kind in _LASTING)}"


def _privileges(service: Service) -> str:
    identity = f"User={NAME}\nGroup={NAME}\nReadWritePaths={STATE_FOLDER}\nWorkingDirectory={STATE_FOLDER}\n"
    return identity + _SYSTEM_SANDBOX + (_GPU_DEVICES if service.recipe == "cuda" else _NO_DEVICES)


def _environment(service: Service, state: Path) -> str:
    """Paths and switches; secrets are credentials."""
    values = {
        "DECIDEPLOY_HOME": state,
        "HF_HOME": state / "hub",
        "XDG_CACHE_HOME": state / "cache",
        "TMPDIR": state / "tmp",
        "PYTHONPYCACHEPREFIX": state / "pycache",
        "PYTHONUNBUFFERED": "1",
    }
    if not service.user:
        values["HOME"] = state
    if not service.fetches:
        values["HF_HUB_OFFLINE"] = "1"
    return "".join(f"{name}={_environment_value(str(value))}\n" for name, value in values.items())


def _environment_value(text: str) -> str:
    """A value of an environment file, which expands nothing and unescapes inside double quotes."""
    escaped = "".join(f"\\{character}" if character in '"\\`$' else character for character in text)
    return text if escaped == text and " " not in text else f'"{escaped}"'


def _folders(state: Path, *, owner: str) -> str:
    """tmpfiles.d: what is written to, and that temporary files of dead engines go."""
    folder = word(str(state)).replace("$$", "$")
    return "".join(
        f"d {path} 0700 {owner} {age}\n"
        for path, age in (
            (folder, "-"),
            (_below(folder, "cache"), "-"),
            (_below(folder, "hub"), "-"),
            (_below(folder, "tmp"), "10d"),
        )
    )


def _below(folder: str, name: str) -> str:
    return f'{folder[:-1]}/{name}"' if folder.endswith('"') else f"{folder}/{name}"


def _account() -> str:
    return f'u {NAME} - "Decision server" {STATE_FOLDER}\n'
