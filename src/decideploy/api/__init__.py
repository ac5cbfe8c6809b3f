"""HTTP routes over :class:`decideploy.decide.DecideService`; FastAPI is imported here and not below."""

from decideploy.api.decide import router as decide_router

__all__ = ["decide_router"]
