"""The outbox of an external bus: messages are staged with the state that they are about, then published.

Promises: committed messages are published, even if the committing process dies immediately; rolled back ones never are.
A row is deleted only after the bus has acknowledged it; until then it is published again, under the same id, which the
bus drops if it has it. The messages of one key are published one after another, in the order of their staging by a
process; if one fails, those behind it wait.

How: each process has a lane of its own that no other process reads. It remembers staged messages after the commit,
publishes them from memory, and deletes the rows in batches. After a failure it reads the rows of its lane again. Every
few seconds each process reads late rows of all lanes, and publishes them too. Delayed messages are in a shared lane;
any process publishes them when they are due.

Clock: the wall clock that is passed in, for what is due and late; the event loop's, for when to look.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BackendError, Closed
from holdfast.flows.log import OutageLog, log_event
from holdfast.plane.bus.envelope import rows_of
from holdfast.plane.db.batcher import Batcher
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import put_many, script
from holdfast.plane.model.records import Message
from holdfast.types import MS, NS

LATE_NS: Final = 2 * NS
POLL_NS: Final = 5 * NS
BATCH: Final = 256

FRESH_MAX: Final = 4096  # rows that are remembered

_CLOSE_LIMIT_S: Final = 2.0
_LATER: Final = ""  # the lane of messages for later
_AGAIN_NS: Final = 500 * MS
_REST_MIN_NS: Final = MS

_log = logging.getLogger("holdfast")

Send: TypeAlias = Callable[[Sequence[Row]], Awaitable[Sequence[Row]]]
"""Publishes rows whose keys all differ, and returns those that are done with. Never raises for a row."""


class PlaneOutbox:
    """The lane of one process, and its relay."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        entropy: Entropy,
        send: Send,
        *,
        late_ns: int = LATE_NS,
        look_ns: int = POLL_NS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._send = send
        self._late_ns = late_ns
        self._look_ns = look_ns
        self._owner = entropy.token()[:16]
        self._place = 0
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._look_s = 0.0  # when to look for what others left
        self._next_ns: int | None = None  # when the next message for later may be published, as far as is known
        self._fresh: deque[Row] = deque()  # staged here, committed, and not yet published
        self._behind = True  # there may be more in the lane than is remembered
        self._gone: set[tuple[str, str]] = set()  # published, and about to be deleted
        self._forgetting: set[asyncio.Task[None]] = set()
        self._deletions: Batcher[set[tuple[str, str]], None] = Batcher(self._delete)
        self._notified = asyncio.Event()  # something was committed here; what others commit is theirs to publish
        self.published = 0
        self._sql = {name: script(f"outbox_{name}", database.dialect) for name in ("own", "left", "next")}

    async def stage(self, tx: Tx, messages: Sequence[Message]) -> None:
        """Part of a transaction: delivered if it commits. Runs in whichever thread the transaction does."""
        rows = rows_of(messages, now_ns := self._clock.now().wall)
        if not rows:
            return
        own: list[Row] = []
        for row in rows:
            row["place"] = self._place = max(now_ns, self._place + 1)
            later = row["not_before_ns"] > now_ns
            row["owner"] = _LATER if later else self._owner
            row["due_ns"] = row["not_before_ns"] if later else row["place"]
            if not later:
                own.append(row)
        await put_many(tx, "outbox_insert", rows)
        later_ns = min((row["due_ns"] for row in rows if row["owner"] == _LATER), default=None)
        tx.after(lambda: self._committed(own, later_ns))

    def _committed(self, rows: Sequence[Row], later_ns: int | None) -> None:
        """Remember what is to be published. Too much to remember is read again."""
        if later_ns is not None:
            self._next_ns = later_ns if self._next_ns is None else min(self._next_ns, later_ns)
        if len(self._fresh) + len(rows) > FRESH_MAX:
            self._fresh.clear()
            self._behind = True
        elif not self._behind:
            self._fresh.extend(rows)
        self._notified.set()

    @property
    def prompt(self) -> bool:
        """Whether what is staged here now is published as soon as it is committed: nothing stands before it."""
        return self._task is not None and not self._behind and not self._closing

    def start(self) -> None:
        """Begin to relay."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._relay())

    async def close(self) -> None:
        """Publish what is remembered, for a moment, and stop. The rest is published by others, or after a start."""
        if self._task is not None:
            self._closing = True
            self._notified.set()
            await asyncio.wait([self._task], timeout=_CLOSE_LIMIT_S)
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._forgetting:
            await asyncio.wait(self._forgetting, timeout=_CLOSE_LIMIT_S)

    async def _relay(self) -> None:
        trouble = OutageLog(_log, "the outbox cannot be read", "the outbox can be read again")
        while not self._closing or (self._fresh and not self._behind):  # ends by cancellation, or with the database
            self._notified.clear()
            try:
                rest_ns = await self._round()
                trouble.ended()
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - the database is away; the rows are safe in it, and it goes on
                trouble.met(error)
                rest_ns = self._pause_ns()
            if rest_ns and not self._closing:
                await self._rest(rest_ns)

    async def _rest(self, ns: int) -> None:
        """Wait until something is committed here, or for so long."""
        timer = asyncio.get_running_loop().call_later(ns / NS, self._notified.set)
        try:
            await self._notified.wait()
        finally:
            timer.cancel()

    async def _round(self) -> int:
        """Publish what there is, at most a batch. How long to rest, unless a commit notifies: 0 is not at all."""
        now_ns = max(self._clock.now().wall, self._place)
        loop_s = asyncio.get_running_loop().time()
        everything = loop_s >= self._look_s
        due = self._next_ns is not None and self._next_ns <= now_ns
        if self._behind or everything or due:
            return await self._read_round(now_ns, loop_s, everything=everything)
        rows = [self._fresh.popleft() for _ in range(min(BATCH, len(self._fresh)))]
        done = await self._publish(rows)
        self._forget(done)
        if len(done) < len(rows):
            self._behind = True  # what comes after it must not overtake it
            return self._pause_ns()
        return 0 if self._fresh else self._rest_ns(now_ns, loop_s)

    async def _read_round(self, now_ns: int, loop_s: float, *, everything: bool) -> int:
        """Publish what stands in the database."""
        # What is committed from here on is remembered again; what was before is about to be read.
        self._fresh.clear()
        self._behind = False

        async def look(tx: Tx) -> tuple[list[Row], int | None]:
            rows = await tx.query(self._sql["own"], {"owner": self._owner, "now_ns": now_ns, "most": BATCH})
            if len(rows) < BATCH:
                rows += await tx.query(self._sql["own"], {"owner": _LATER, "now_ns": now_ns, "most": BATCH})
            if everything and len(rows) < BATCH:
                rows += await tx.query(self._sql["left"], {"late_ns": now_ns - self._late_ns, "most": BATCH})
            due = await tx.query(self._sql["next"], {"owner": _LATER, "now_ns": now_ns})
            return rows, due[0]["due_ns"]

        try:
            found, self._next_ns = await self._database.read(look)
            rows = list({_name(row): row for row in found if _name(row) not in self._gone}.values())
            done = await self._publish(rows)
        except BaseException:
            self._behind = True
            raise
        self._forget(done)
        read = {_name(row) for row in rows}
        self._fresh = deque(row for row in self._fresh if _name(row) not in read)
        self._behind = self._behind or len(done) < len(rows) or len(found) >= BATCH
        if everything and len(found) < BATCH:
            self._look_s = loop_s + (self._look_ns // 2 + self._entropy.below(self._look_ns // 2)) / NS
        if len(done) < len(rows):
            return self._pause_ns()
        return 0 if self._behind or self._fresh else self._rest_ns(now_ns, loop_s)

    def _rest_ns(self, now_ns: int, loop_s: float) -> int:
        until_ns = max(_REST_MIN_NS, round((self._look_s - loop_s) * NS))
        return until_ns if self._next_ns is None else max(_REST_MIN_NS, min(until_ns, self._next_ns - now_ns))

    def _forget(self, done: Sequence[Row]) -> None:
        """Delete rows that the bus has, while others are published already."""
        if not done:
            return
        self.published += len(done)
        names = {_name(row) for row in done}
        self._gone |= names
        task = asyncio.get_running_loop().create_task(self._deleted(names))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _deleted(self, names: set[tuple[str, str]]) -> None:
        try:
            await self._deletions.ask(names)
        except (BackendError, Closed) as error:
            text = "messages that were published stay in the outbox for now"
            log_event(_log, logging.INFO, text, error, messages=len(names))
        finally:
            self._gone -= names

    async def _delete(self, batch: Sequence[set[tuple[str, str]]]) -> Sequence[None]:
        rows = [{"id": identity, "recipient": group} for names in batch for identity, group in sorted(names)]
        if ARMED:
            await areach("plane.outbox.forget")
        await self._database.write(lambda tx: put_many(tx, "outbox_delete", rows))
        if ARMED:
            await areach("plane.outbox.forgotten")
        return [None] * len(batch)

    async def _publish(self, rows: Sequence[Row]) -> list[Row]:
        """Publish in waves: of each key the first, then the second, as long as nothing of that key failed."""
        done: list[Row] = []
        failed: set[str] = set()
        for wave in waves(rows):
            going = [row for row in wave if not row["message_key"] or key_of(row) not in failed]
            if ARMED:
                await areach("plane.outbox.publish")
            sent = await self._send(going)
            if ARMED:
                await areach("plane.outbox.published")
            done += sent
            kept = set(map(_name, sent))
            failed |= {key_of(row) for row in going if _name(row) not in kept}
        return done

    def _pause_ns(self) -> int:
        return _AGAIN_NS // 2 + self._entropy.below(_AGAIN_NS)


def waves(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in groups in which no key comes twice; the order of each key is that of the groups."""
    found: list[list[Row]] = []
    seen: dict[str, int] = {}
    for row in rows:
        number = 0
        if row["message_key"]:
            number = seen.get(key_of(row), 0)
            seen[key_of(row)] = number + 1
        if number == len(found):
            found.append([])
        found[number].append(row)
    return found


def key_of(row: Row) -> str:
    """What the messages that keep their order have in common; of one without a key, what it has alone."""
    if not row["message_key"]:
        return f"{row['recipient']}\n{row['id']}"
    return f"{row['recipient']}\n{row['subject']}\n{row['message_key']}"


def _name(row: Row) -> tuple[str, str]:
    return row["id"], row["recipient"]
