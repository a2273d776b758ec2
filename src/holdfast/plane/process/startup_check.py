"""The start of a process: it waits until the stores that it needs answer, and prepares the database.

Promises: `stores_ready` returns when the database is prepared and every store that the process needs has answered. A
store that does not answer is logged, without its password, when the wait begins, now and then while it lasts, and when
it is over. Errors that a wait cannot cure (a wrong password, a missing driver, a newer database, another bus) are
raised immediately. A store that the process does not need, but that its readiness shows, is asked once and not waited
for.

Does not promise that a store answers a moment later: then the part that needs it waits for it. Does not limit the wait:
an orchestrator that starts processes in any order needs none, and the readiness check names the missing store.

Clock: the event loop's, for the answers and the pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final

from holdfast.core.backoff import Exponential
from holdfast.core.ports import Entropy
from holdfast.errors import BackendError, Misconfigured, Unavailable
from holdfast.flows.log import OutageLog, log_event
from holdfast.plane.process.components import Components
from holdfast.plane.service.service import CHECKED, DATABASE, Service
from holdfast.plane.settings.settings import Settings
from holdfast.stores.registry import redacted
from holdfast.types import MS, NS

ANSWER_S: Final = 5.0
"""How long a store may take for its first answer."""

PAUSES: Final = Exponential(500 * MS, 5 * NS)

_log: Final = logging.getLogger("holdfast.plane")


async def stores_ready(components: Components, needed: Collection[str] = CHECKED) -> None:
    """Return when the database is prepared and the `needed` stores have answered; raise what waiting cannot cure."""
    await _answered(DATABASE, components.prepare, components.entropy, waits=True)
    for name in CHECKED:
        ask = partial(_ask, name, components.settings, components.service)
        await _answered(name, ask, components.entropy, waits=name in needed)


async def _answered(name: str, ask: Callable[[], Awaitable[None]], entropy: Entropy, *, waits: bool) -> None:
    away = OutageLog(_log, "a store does not answer; the process waits for it", "the store answers", store=name)
    attempt = 0
    while True:  # ends when it answers, or with the process
        try:
            await ask()
        except Misconfigured:
            raise
        except BackendError as error:
            if not waits:
                log_event(
                    _log, logging.WARNING, "a store does not answer; the process starts without it", error, store=name
                )
                return
            away.met(error)
        else:
            away.ended()
            return
        await asyncio.sleep(PAUSES.delay_ns(attempt, 0, entropy.below) / NS)
        attempt += 1


async def _ask(name: str, settings: Settings, service: Service) -> None:
    places = {"database": settings.database_url, "bus": settings.bus, "leases": settings.lease_url}
    try:
        async with asyncio.timeout(ANSWER_S):
            await service.check(name)
    except TimeoutError as error:
        if isinstance(error, BackendError):
            raise
        place = redacted(places[name] or settings.database_url)
        raise Unavailable(f"the {name} does not answer within {ANSWER_S:g} s: {place}") from None
