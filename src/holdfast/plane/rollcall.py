"""Whether every store of a plane answers, asked once when a process of it starts.

Promises: whoever starts a process sees at once that a store is not there, and which, with its place and without its
password. Does not promise that one is there a moment later: then whatever needs it waits for it. Clock: the event
loop's, for how long an answer may take.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.errors import BackendError, Unavailable
from holdfast.plane.service import CHECKED, Service
from holdfast.plane.settings import Settings
from holdfast.stores.registry import redacted

ANSWER_S: Final = 5.0
"""How long a store may take for its first answer."""


async def call_the_roll(settings: Settings, service: Service) -> None:
    """Return when database, bus and leases have answered; raise what one of them says instead."""
    places = {"database": settings.database_url, "bus": settings.bus, "leases": settings.lease_url}
    for name in CHECKED:
        try:
            async with asyncio.timeout(ANSWER_S):
                await service.check(name)
        except TimeoutError as error:
            if isinstance(error, BackendError):
                raise
            place = redacted(places[name] or settings.database_url)
            raise Unavailable(f"the {name} does not answer within {ANSWER_S:g} s: {place}") from None
