"""What the two files for containers share: all of it as the images have it."""

from __future__ import annotations

from typing import Final

from decideploy.deploy.units.service import Service

USER: Final = "10001:10001"
PORT: Final = 8000
SHM_BYTES: Final = 1024**3
OPEN_FILES: Final = 65_536
SECRETS: Final = "/run/secrets"

HEALTH_COMMAND: Final = (
    "python",
    "-c",
    f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{PORT}/ready', timeout=4)",
)
HEALTH_INTERVAL_S: Final = 10
HEALTH_TIMEOUT_S: Final = 5
HEALTH_RETRIES: Final = 3
HEALTH_START_S: Final = 1200


def container_command(service: Service) -> tuple[str, ...]:
    """The arguments of the image's entry point; the port is published, so it listens for more than itself."""
    key_file = ("--api-key-file", f"{SECRETS}/api-keys") if service.api_key_file else ()
    return ("serve", *service.arguments, "--host", "0.0.0.0", "--port", str(PORT), *key_file)


def container_environment(service: Service) -> dict[str, str]:
    """What the image does not set itself."""
    environment = {} if service.fetches else {"HF_HUB_OFFLINE": "1"}
    return environment | ({"HF_TOKEN_PATH": f"{SECRETS}/hub-token"} if service.hub_token_file else {})


def published(service: Service) -> str:
    """The host's address and port, and the container's."""
    host = f"[{service.host}]" if ":" in service.host else service.host
    return f"{host}:{service.port}:{PORT}"
