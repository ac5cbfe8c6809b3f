"""vLLM endpoint plugin: the decide routes inside ``vllm serve``.

vLLM loads it when ``VLLM_PLUGINS`` names ``decideploy``. vLLM only logs an error raised while a plugin is
imported or constructed, and then serves without it; so nothing is imported or checked before
``attach_router``, whose errors stop the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from decideploy.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI
    from starlette.datastructures import State

    from decideploy.build import InstalledBuild


def installed_build() -> InstalledBuild:
    """The build that is running; IntegrityError when its files are not those of a lock."""
    from decideploy.build import check_installed  # noqa: PLC0415

    return check_installed()


class DecidePlugin:
    """``check_build`` proves which engine build is running, and raises when it is none of ours."""

    name = "decideploy"
    required_tasks = ("generate",)

    def __init__(self, check_build: Callable[[], InstalledBuild] = installed_build) -> None:
        self._check_build = check_build
        self._build: InstalledBuild | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to ``app``; IntegrityError when the engine build is not the locked one."""
        self._build = self._check_build()

        from decideploy.api import attach  # noqa: PLC0415

        attach(app)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Put the service into ``state.decideploy``; any fault in the model's files stops the start."""
        if self._build is None:
            raise ConfigError("the plugin was not attached before its state was initialised")
        from decideploy.serve.assembly import build_info, make_service  # noqa: PLC0415

        state.decideploy = make_service(engine_client, state, args, build_info(self._build))
