"""Waits for changes of jobs or runs, with one query for all waiters of a process.

Promises: a waiter is answered as soon as one of its items differs from the mark that it gave, or has finished, whatever
it was requested. The commit that ends an item notifies the watcher, which then reads all awaited items in one query. At
most half of the time is spent on queries, so a thousand waiters cost about as much as one. Without waiters there is no
query. An error of the database is raised by all waits under way.

Does not promise to show every change: changes that follow each other quickly are seen as one. Notifications are hints;
without them, changes are found after `POLL_S`.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import script
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.records import check_id, check_whole
from holdfast.types import NS

POLL_S: Final = 0.25
WATCHED_MAX: Final = 500
"""Items of one request."""
WATCH_NS_MAX: Final = 60 * NS

_REST_S_MAX: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sighting:
    """The state of an item when it was read."""

    id: str
    tenant: str
    state: str
    ended: bool
    mark: str  # differs after every change


class _Waiter:
    """One wait."""

    def __init__(self, known: Mapping[str, str], *, ended: bool) -> None:
        self.known = known
        self._ended = ended
        self.answer: asyncio.Future[dict[str, Sighting | None]] = asyncio.get_running_loop().create_future()

    def show(self, seen: Mapping[str, Sighting]) -> None:
        """End the wait if there is news."""
        if self.answer.done():
            return
        news = {each: found for each in self.known if self._is_news(each, found := seen.get(each))}
        if news:
            self.answer.set_result(news)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _is_news(self, item: str, found: Sighting | None) -> bool:
        return found is None or found.ended or (not self._ended and found.mark != self.known[item])


class ChangeWatcher:
    """All waits of a process for one kind of item."""

    def __init__(self, database: Database, statement: str, channel: str, ended: Callable[[str], bool]) -> None:
        """`statement`: the name of the query. `channel`: notified when an item ends. `ended`: judges a state."""
        self._database = database
        self._statement = script(statement, database.dialect)
        self._channel = channel
        self._ended = ended
        self._waiters: dict[_Waiter, None] = {}
        self._reading: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self.queries = 0

    async def wait(
        self, caller: Caller, known: Mapping[str, str], timeout_ns: int, *, ended: bool = False
    ) -> dict[str, Sighting | None]:
        """Wait until items have changed since their mark in `known` ("": never seen). Empty: none has in time.

        None stands for an item that does not exist for the caller. `ended`: wait only for the end of items. A timeout
        of 0 reads once.
        """
        _check(known)
        check_whole("timeout", timeout_ns, 0, WATCH_NS_MAX)
        waiter = _Waiter(known, ended=ended)
        if timeout_ns == 0:
            waiter.show(await self._read(known))
            found = waiter.answer.result() if waiter.answer.done() else {}
            return _visible(caller, found)
        self._waiters[waiter] = None
        self._again.set()
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_on(), name=f"watch {self._channel}")
        try:
            async with asyncio.timeout(timeout_ns / NS):
                return _visible(caller, await waiter.answer)
        except TimeoutError:
            if waiter.answer.done() and not waiter.answer.cancelled():  # an error of the database may be one, too
                return _visible(caller, waiter.answer.result())
            return {}
        finally:
            del self._waiters[waiter]
            if not self._waiters and self._reading is not None:
                self._reading.cancel()
                self._reading = None

    async def _read_on(self) -> None:
        """Read the awaited items after each notification, new waiter, or pause, until this task is cancelled."""
        loop = asyncio.get_running_loop()
        listener = self._database.listen(self._channel)
        listener.each(self._again.set)
        try:
            while True:
                self._again.clear()
                began = loop.time()
                waiters = list(self._waiters)
                try:
                    seen = await self._read({item for each in waiters for item in each.known})
                except Exception as error:  # noqa: BLE001 - raised by the waits
                    for each in waiters:
                        each.fail(error)
                else:
                    for each in waiters:
                        each.show(seen)
                await asyncio.sleep(min(loop.time() - began, _REST_S_MAX))
                await _set_within(self._again, POLL_S)
        finally:
            listener.close()

    async def _read(self, items: Collection[str]) -> dict[str, Sighting]:
        self.queries += 1
        values = {"ids": json.dumps(list(items))}

        async def work(tx: Tx) -> list[Row]:
            return await tx.query(self._statement, values)

        found = [self._sighting(row) for row in await self._database.read(work)]
        return {each.id: each for each in found}

    def _sighting(self, row: Row) -> Sighting:
        mark = f"{row['version']}.{row['progress_ns'] or 0}"
        return Sighting(row["id"], row["tenant"], row["state"], self._ended(row["state"]), mark)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _visible(caller: Caller, found: Mapping[str, Sighting | None]) -> dict[str, Sighting | None]:
    """Items of other tenants do not exist."""
    return {
        item: None if sighting is None or not caller.sees(sighting.tenant) else sighting
        for item, sighting in found.items()
    }


def _check(known: Mapping[str, str]) -> None:
    if not known or len(known) > WATCHED_MAX:
        raise BadInput("known", f"has {len(known)} items", f"watch 1 to {WATCHED_MAX} items")
    for item in known:
        check_id("id", item)
