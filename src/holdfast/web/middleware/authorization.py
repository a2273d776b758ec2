"""Required roles of routes. Every route of the API declares one; a test finds those that do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import unquote

from fastapi import Depends, Path
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPBearer
from pydantic import BeforeValidator
from starlette.requests import Request

from holdfast.plane.model.records import ID_CHARS_MAX
from holdfast.plane.service.service import Caller, NotAllowed, Service
from holdfast.types import LABEL_CHARS_MAX
from holdfast.web.middleware.auth import Principal, Role
from holdfast.web.schemas.jobs import LABEL_PATTERN

BEARER: Final = HTTPBearer(auto_error=False, description="A token from the server's configuration.")


@dataclass(frozen=True)
class Needs:
    """A dependency that requires a role. `everywhere`: and a caller who is not bound to a tenant."""

    role: Role
    everywhere: bool = False

    async def __call__(self, request: Request, _bearer: Annotated[Any, Depends(BEARER)]) -> None:
        """Return, or raise `NotAllowed`."""
        principal = principal_of(request)
        if not principal.has(self.role):
            raise NotAllowed(f"this requires the role {self.role}")
        if self.everywhere and principal.tenant is not None:
            raise NotAllowed("this shows data of every tenant, and you are bound to one")


def needs(role: Role, *, everywhere: bool = False) -> Dependency:
    """The declaration of a route's required role."""
    made = Depends(Needs(role, everywhere))
    assert isinstance(made, Dependency)  # noqa: S101 - for the type checker: the function is declared to return Any
    return made


def principal_of(request: Request) -> Principal:
    """The caller. The intake admits only known callers."""
    principal = request.scope["state"]["principal"]
    if not isinstance(principal, Principal):
        raise NotAllowed("the caller is not known")
    return principal


def _caller(request: Request) -> Caller:
    return principal_of(request).caller


def _service(request: Request) -> Service:
    service = request.app.state.service
    if not isinstance(service, Service):
        raise TypeError("the application was not made by create_app")
    return service


Asking = Annotated[Caller, Depends(_caller)]
Serving = Annotated[Service, Depends(_service)]
Segment = Annotated[str, Path(min_length=1, max_length=2 * ID_CHARS_MAX), BeforeValidator(unquote)]
"""An id in an address: the intake leaves slashes in it encoded."""

TenantSegment = Annotated[
    str, Path(min_length=1, max_length=LABEL_CHARS_MAX, pattern=LABEL_PATTERN), BeforeValidator(unquote)
]
"""A tenant in an address."""


def own_tenant(caller: Caller, given: str | None) -> str:
    """The tenant on whose behalf the caller acts, or `NotAllowed`."""
    if given is not None and not caller.sees(given):
        raise NotAllowed("you may act only for your own tenant")
    return given or caller.tenant or "default"
