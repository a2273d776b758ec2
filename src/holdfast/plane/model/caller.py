"""Callers of the plane: their name, their tenant, and the limits of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from holdfast.errors import HoldfastError
from holdfast.plane.model.paging import Place

T = TypeVar("T")

PAGE_MAX: Final = 500
REASON_CHARS_MAX: Final = 500
TRACE_CHARS_MAX: Final = 200
LABELS_MAX: Final = 50


class NotAllowed(HoldfastError):
    """The caller is known, and may not do this. Nothing was done."""


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf something is asked. `tenant` None: every tenant's."""

    name: str
    tenant: str | None = None

    def sees(self, tenant: str) -> bool:
        """Whether things of this tenant exist for the caller."""
        return self.tenant is None or self.tenant == tenant

    def scope(self, tenant: str | None) -> str | None:
        """The tenant to look at, None for all, when the caller asked for this one; or `NotAllowed`."""
        if tenant is not None and not self.sees(tenant):
            raise NotAllowed("you may look at one tenant only, and this is another")
        return self.tenant if tenant is None else tenant

    def own(self, tenant: str | None) -> str:
        """The tenant on whose behalf the caller acts, when it named this one; or `NotAllowed`."""
        if tenant is not None and not self.sees(tenant):
            raise NotAllowed("you may act only for your own tenant")
        return tenant or self.tenant or "default"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of a list. `after`: where the next page begins; None: there is none."""

    items: list[T]
    after: Place | None
