"""Health, readiness and metrics alone, for processes without the API: the same routes, the same rules of access."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from holdfast.plane.process.health import Vitals
from holdfast.web import health
from holdfast.web.auth import Access
from holdfast.web.bodies import refuse_unknown_parameters


def create_probe(vitals: Vitals, access: Access) -> FastAPI:
    """The application. What `vitals` speaks of is opened and closed by the caller."""
    app = FastAPI(
        title="Holdfast probe",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(refuse_unknown_parameters)],
    )
    app.include_router(health.router)
    health.install(app, vitals, access, rates=None, jobs=False)
    return app
