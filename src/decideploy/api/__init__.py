"""HTTP routes over :class:`decideploy.decide.DecideService`; FastAPI is imported here and not below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from decideploy.api import decide, decisions, systemone
from decideploy.api.errors import DECIDE, DECISIONS, SYSTEMONE
from decideploy.api.models import take_path
from decideploy.api.route import NothingHere

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["attach"]


def attach(app: FastAPI) -> None:
    """Add every route to ``app``, which holds the engine's own already."""
    for router in (decide.router, systemone.router, decisions.router):
        app.include_router(router)
    for path, dialect in (("/v1/decide", DECIDE), (systemone.PATH, SYSTEMONE), (decisions.PATH, DECISIONS)):
        app.router.routes.append(Route(f"{path}/{{rest:path}}", NothingHere(dialect)))
    take_path(app)
