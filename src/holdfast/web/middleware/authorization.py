"""Which route takes which role. Every route of the API names one of these; a test lists those that do not."""

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

BEARER: Final = HTTPBearer(auto_error=False, description="A token that the server's configuration knows.")


@dataclass(frozen=True)
class Needs:
    """A dependency that lets in who has a role. `everywhere`: and is not bound to a tenant."""

    role: Role
    everywhere: bool = False

    async def __call__(self, request: Request, _bearer: Annotated[Any, Depends(BEARER)]) -> None:
        """Let the request in, or `NotAllowed`."""
        principal = principal_of(request)
        if not principal.has(self.role):
            raise NotAllowed(f"this takes the role {self.role}")
        if self.everywhere and principal.tenant is not None:
            raise NotAllowed("this shows things of every tenant, and you are bound to one")


def needs(role: Role, *, everywhere: bool = False) -> Dependency:
    """What a route says about who may use it."""
    made = Depends(Needs(role, everywhere))
    assert isinstance(made, Dependency)  # noqa: S101 - for the type checker: the function says that it returns anything
    return made


def principal_of(request: Request) -> Principal:
    """Who asks. The intake lets nobody else through."""
    principal = request.scope["state"]["principal"]
    if not isinstance(principal, Principal):
        raise NotAllowed("nobody is known to ask")
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
    """The tenant in whose name something is asked, or `NotAllowed`."""
    if given is not None and not caller.sees(given):
        raise NotAllowed("you may act for your own tenant only")
    return given or caller.tenant or "default"
