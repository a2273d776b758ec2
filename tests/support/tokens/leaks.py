"""Where a token must not be: all readable output, collected, and lease operations that produce it."""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import holdfast
import holdfast.aio
from holdfast.errors import HoldfastError
from holdfast.testing.conformance.check import expect_no_token
from support.cli.sessions import until
from support.tokens.record import recording

CALLERS: Final = {"ada": "a-token-of-an-api-caller-0001", "boss": "a-token-of-an-api-caller-0002"}
PASSWORD: Final = "a-password-of-a-store-0003"
TOLD: Final = ("processes", "run")  # which contain the URL of the store, because the test put it there


class Sinks:
    """All readable output, by its source."""

    def __init__(self) -> None:
        self.tokens: set[str] = set()
        self.seen: dict[str, list[str]] = {}

    def look(self, where: str, *things: object) -> None:
        self.seen.setdefault(where, []).extend(f"{thing!r} {thing!s}" for thing in things)

    def failed(self, error: BaseException) -> None:
        """Everything that is written when an error is."""
        shown = [repr(error), str(error), repr(vars(error)), *traceback.format_exception(error)]
        self.look("errors", *shown, pickle.dumps(error))

    def expect_silence(self, *required: str) -> None:
        assert set(required) <= {where for where, texts in self.seen.items() if any(texts)}, "a sink was not looked at"
        for where, texts in self.seen.items():
            text = "\n".join(texts)
            found = set(re.findall("(?=([0-9a-f]{8}))", text.lower()))
            for token in self.tokens:
                if any(token[start : start + 8] in found for start in range(len(token) - 7)):
                    expect_no_token(text, token, where)
            assert not [each for each in CALLERS.values() if each in text], f"{where} gives away the token of a caller"
            assert where in TOLD or PASSWORD not in text, f"{where} gives away the password of the store"


@contextmanager
def listening() -> Iterator[Sinks]:
    """Where to look; what this process logs meanwhile, drivers' lines included, is looked at already."""
    made = Sinks()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.startswith(("httpx", "httpcore")):
                return  # the test's own client
            trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
            made.look("log", record.getMessage(), record.__dict__, trace)

    root, listener = logging.getLogger(), Listener()
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        with recording(made.tokens.add):
            yield made
    finally:
        root.removeHandler(listener)
        root.setLevel(level)


def use_blocking(url: str, sinks: Sinks, outage: Callable[[], Any]) -> None:
    """A life of leases, in threads."""
    notes = Notes(sinks)
    with (
        holdfast.connect(url, observers=[notes], policy={"low": "fail_open"}, request_timeout=0.5) as locks,
        holdfast.connect(url) as others,
    ):
        lock = locks.lock("here:k", ttl=10)
        lease = lock.acquire()
        sinks.look("shown", lock, lease, locks, lease.fingerprint, lease.owner, lease.lost, locks.statistics())
        sinks.look("shown", others.inspect("here:k"), others.list(), locks.health(), locks.measurements())
        with failing(sinks):
            others.lock("here:k", ttl=10).acquire(timeout=0)
        others.force_release("here:k", reason="drill")
        with failing(sinks):
            lease.renew()
        lease.release()
        sinks.look("shown", lease, others.audit())
        token = locks.acquire_token("here:t", 10)
        with failing(sinks):
            locks.release_token("here:t", "0" * 32)
        with failing(sinks):
            locks.release_token("here:t", "")
        locks.release_token("here:t", token)
        with outage():
            with failing(sinks):
                locks.lock("here:high", ttl=10, risk="high").acquire()
            degraded = locks.lock("here:low", ttl=10, risk="low").acquire()
            sinks.look("shown", degraded)
        until(lambda: notes.of("promoted") or not notes.of("fell_back"), "the lease to be full again")
        sinks.look("shown", degraded)
        degraded.release()


async def use_asyncio(url: str, sinks: Sinks, outage: Callable[[], Any]) -> None:
    """The same, on an event loop."""
    notes = Notes(sinks)
    async with (
        holdfast.aio.connect(url, observers=[notes], policy={"low": "fail_open"}, request_timeout=0.5) as locks,
        holdfast.aio.connect(url) as others,
    ):
        lock = locks.lock("there:k", ttl=10)
        lease = await lock.acquire()
        sinks.look("shown", lock, lease, locks, lease.fingerprint, lease.owner, lease.lost, locks.statistics())
        sinks.look("shown", await others.inspect("there:k"), await others.list(), locks.health())
        with failing(sinks):
            await others.lock("there:k", ttl=10).acquire(timeout=0)
        await others.force_release("there:k", reason="drill")
        with failing(sinks):
            await lease.renew()
        with outage():
            with failing(sinks):
                await locks.lock("there:high", ttl=10, risk="high").acquire()
            degraded = await locks.lock("there:low", ttl=10, risk="low").acquire()
            sinks.look("shown", degraded)
        async with asyncio.timeout(60):
            await asyncio.to_thread(until, lambda: notes.of("promoted") or not notes.of("fell_back"), "a full lease")
        await degraded.release()


class Notes:
    """An observer."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._kinds: list[str] = []

    def note(self, record: Any) -> None:
        self._kinds.append(str(record.kind))
        self._sinks.look("records", record)

    def of(self, kind: str) -> int:
        return self._kinds.count(kind)


@contextmanager
def failing(sinks: Sinks) -> Iterator[None]:
    try:
        yield
    except HoldfastError as error:
        sinks.failed(error)
    else:
        raise AssertionError("it should have failed")
