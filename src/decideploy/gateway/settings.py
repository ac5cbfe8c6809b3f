"""The settings of a server: a JSON file, written by whoever starts it, read by the served application."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decideploy.errors import ConfigError

SETTINGS_VARIABLE: Final = "DECIDEPLOY_SETTINGS"


class ServerSettings(BaseModel):
    """What the operator may set; the defaults hold where no file is named. Times are in seconds.

    ``api_key_file`` has one key a line, beside those of DECIDEPLOY_API_KEYS. ``max_concurrency`` requests run
    at once and ``max_queue`` wait behind them; more are answered 429. ``request_timeout_s`` counts from the
    request's arrival, its wait included. ``body_timeout_s`` is how long a body may take to arrive once the
    request has its slot. ``drain_timeout_s`` is how long requests in flight may take after
    SIGTERM. A server fails when ``failures_in_a_row`` requests failed in the engine, the last of them a
    canary, or when nothing was answered for ``stall_s``; a canary is sent after ``canary_s`` without an
    answer. An engine that fails for ``give_up_s`` without a pause counts as dead. ``dead_linger_s`` is how
    long requests are refused after the engine's death before the process ends. ``access_log`` is a file, or
    the number of an open file descriptor; standard output is 1.
    ``golden`` is a file of golden decisions that the self-test compares with. ``start_record`` is where
    ``serve`` lays how the start compares with the plan, once it knows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    api_key_file: Path | None = None
    max_concurrency: int = Field(default=256, ge=1)
    max_queue: int = Field(default=256, ge=0)
    request_timeout_s: float = Field(default=300.0, gt=0)
    body_timeout_s: float = Field(default=30.0, gt=0)
    max_body_bytes: int = Field(default=32 * 2**20, ge=1)
    drain_timeout_s: float = Field(default=30.0, ge=0)
    failures_in_a_row: int = Field(default=3, ge=1)
    stall_s: float = Field(default=60.0, gt=0)
    canary_s: float = Field(default=20.0, gt=0)
    give_up_s: float = Field(default=600.0, gt=0)
    dead_linger_s: float = Field(default=2.0, ge=0)
    access_log: Path | int = 1
    golden: Path | None = None
    start_record: Path | None = None


def read_settings(environ: Mapping[str, str] | None = None) -> ServerSettings:
    """The settings in DECIDEPLOY_SETTINGS' file, else the defaults; ConfigError with every fault."""
    path = (os.environ if environ is None else environ).get(SETTINGS_VARIABLE)
    if not path:
        return ServerSettings()
    try:
        return ServerSettings.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(
            f"the settings cannot be read: {error.strerror}",
            where=f"{SETTINGS_VARIABLE}={path}",
            next_step="name a readable file, or unset the variable",
        ) from error
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise ConfigError(
            "; ".join(faults), where=path, next_step="correct these keys; docs/operate.md explains each"
        ) from error
