"""The HTTP API under `/api/v1`, described at `/openapi.json`, with health, metrics and the status page.

Promises: every route of the API requires a role. Every error is a problem document (`problems`). An acknowledged
command is committed. The interactive documentation is off by default, because it loads scripts from other sites.

`create_probe` makes an application with health, readiness and metrics alone, for processes without the API: the same
routes with the same access rules.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.service.service import Service
from holdfast.web import openapi, static_files
from holdfast.web.middleware.auth import Access, Needs
from holdfast.web.middleware.json_body import refuse_unknown_parameters
from holdfast.web.middleware.rate_limit import Rates
from holdfast.web.routes import findings as routes_findings
from holdfast.web.routes import health, plane, resources, status
from holdfast.web.routes import jobs as routes_jobs
from holdfast.web.routes import policy as routes_policy
from holdfast.web.routes import runs as routes_runs
from holdfast.web.routes import schedules as routes_schedules
from holdfast.web.routes.job_stream import OpenStreams
from holdfast.web.schemas.plane import ProblemShown
from holdfast.web.status_cache import StatusCache

PREFIX: Final = "/api/v1"
API_VERSION: Final = "1"

ROUTERS: Final = (
    *(routes_jobs.router, routes_jobs.letters, plane.router),
    *(resources.router, status.router, routes_findings.router, routes_policy.router),
    *(routes_runs.workflows, routes_runs.router, routes_runs.approvals, routes_schedules.router),
)


def create_app(
    service: Service,
    access: Access,
    *,
    docs: bool = False,
    process_health: ProcessHealth | None = None,
    rates: Rates | None = None,
) -> FastAPI:
    """The application. The caller opens and closes `service`; `access` authenticates requests.

    `process_health`: the health of the process, if it has more than the service; `rates` limits requests per caller.
    """
    process_health = process_health or ProcessHealth(service)
    app = _routed(docs=docs)
    app.state.service = service
    app.state.board = StatusCache(service)
    app.state.streams = OpenStreams()
    health.install(app, process_health, access, rates=rates, jobs=True)
    return app


def description() -> dict[str, Any]:
    """The OpenAPI document, the same for every plane."""
    return _routed(docs=False).openapi()


def _routed(*, docs: bool) -> FastAPI:
    app = FastAPI(
        title="Holdfast",
        version=API_VERSION,
        docs_url="/docs" if docs else None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation,
        dependencies=[Depends(refuse_unknown_parameters)],
    )
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    app.include_router(health.router)
    app.router.routes.extend(static_files.ROUTES)
    app.openapi = _Description(app)  # type: ignore[method-assign]  # the documented way to change the description
    return app


def needed() -> dict[str, Needs]:
    """The required role of each operation that takes a token, by its name."""
    routers: tuple[APIRouter, ...] = (*ROUTERS, health.router)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    asked = ((route.name, each.dependency) for route in routes for each in route.dependencies)
    return {name: need for name, need in asked if isinstance(need, Needs)}


def _operation(route: APIRoute) -> str:
    return route.name


class _Description:
    """The OpenAPI document: created once, with problem documents instead of the framework's errors."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._made: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        if self._made is None:
            made = get_openapi(title=self._app.title, version=self._app.version, routes=self._app.routes)
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            shown = ProblemShown.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= shown.pop("$defs", {})
            schemas["ProblemShown"] = shown
            self._made = openapi.complete(made, needed())
        return self._made


def create_probe(process_health: ProcessHealth, access: Access) -> FastAPI:
    """The application. The caller opens and closes the components behind `process_health`."""
    app = FastAPI(
        title="Holdfast probe",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(refuse_unknown_parameters)],
    )
    app.include_router(health.router)
    health.install(app, process_health, access, rates=None, jobs=False)
    return app
