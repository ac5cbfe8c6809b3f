"""``GET /v1/models``: the engine's list of models, with the TypeSafe client's list beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, ConfigDict

from decideploy.api.errors import DECIDE, GATE_STATUSES
from decideploy.api.route import DecideRoute
from decideploy.decide import ADAPTER_NAME, RequestError

PATH: Final = "/v1/models"
DESCRIPTION: Final = "Typed decisions: yes or no, one of several options, a score."


class ModelMetadata(BaseModel):
    """A model as the TypeSafe client lists it; ``release_date`` is the day since which it is served."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str
    release_date: str


class ModelCard(BaseModel):
    """A model as the OpenAI client lists it, with the engine's own fields."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str
    object: str
    created: int
    owned_by: str


class ModelsResponse(BaseModel):
    """One body for both clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    object: str
    data: list[ModelCard]
    models: list[ModelMetadata]


router = APIRouter(route_class=DecideRoute, tags=["models"])


@router.get(PATH, responses=DECIDE.responses(GATE_STATUSES))  # type: ignore[untyped-decorator]
async def get_models(raw_request: Request) -> ModelsResponse:
    """The models of this server; ``/v1/systemone`` and ``/v1/decisions`` take each of their names."""
    served = await raw_request.app.state.openai_serving_models.show_available_models()
    document = served.model_dump()
    cards = [ModelCard.model_validate(card) for card in document["data"]]
    names = served_names(raw_request.app.state)
    metadata = [
        ModelMetadata(name=card.id, description=DESCRIPTION, release_date=_day(card.created))
        for card in cards
        if card.id in names
    ]
    return ModelsResponse(object=document["object"], data=cards, models=metadata)


def _day(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, tz=UTC).date().isoformat()


def take_path(app: FastAPI) -> None:
    """Put our route before the engine's, whose clients find in its answer all that they found before."""
    theirs = [route for route in app.router.routes if getattr(route, "path", None) == PATH]
    app.include_router(router)
    ours = app.router.routes.pop()
    app.router.routes.insert(0, ours)
    for route in theirs:
        # It is never reached, and would overwrite the description of ours.
        route.include_in_schema = False


def served_names(state: Any) -> tuple[str, ...]:
    """The names under which this server decides: the model's and the adapter's."""
    return (*(path.name for path in state.openai_serving_models.base_model_paths), ADAPTER_NAME)


def check_model(name: str, state: Any) -> None:
    """Raise RequestError(404) unless this server decides under ``name``."""
    names = served_names(state)
    if name not in names:
        raise RequestError(
            f"there is no model {name[:200]!r} here; this server serves {', '.join(names)}",
            param="model",
            code="model_not_found",
            status=404,
        )
