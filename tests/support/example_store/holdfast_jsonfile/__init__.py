"""Leases in one JSON file, locked with `flock`: an example of a store in a package of its own.

Promises: exclusion and rising fences for the processes of one host; leases survive a restart. Does not promise speed:
each call reads and writes the whole file. Waiters poll. Clock: the wall clock of the host, so a step of it ends leases
early or late.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import BadInput, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores import (
    AcquireRequest,
    AuditRecord,
    Busy,
    Capabilities,
    Grant,
    Guarantee,
    Holding,
    Renewal,
    Watch,
)
from holdfast.types import fingerprint

T = TypeVar("T")
State = dict[str, Any]

CAPABILITIES: Final = Capabilities(
    engine="jsonfile", guarantee=Guarantee.FENCED, wakeups=False, fair=False, durable=True, shared=True
)


class JsonFileStore:
    """The blocking store. Every call is one step under the lock of the file."""

    capabilities = CAPABILITIES

    def __init__(self, path: Path) -> None:
        self._path = path

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        with self._state(timeout_ns) as (state, now):
            lease = state["leases"].get(ask.key)
            if lease is not None and lease["token"] != ask.token:
                return Busy(ask.key, lease["owner"], lease["until"] - now)
            if lease is None:
                state["fence"] = max(state["fence"] + 1, now // 1000, ask.floor)
                lease = {"token": ask.token, "owner": ask.owner, "family": ask.family}
                lease |= {"fence": state["fence"], "since": now}
            state["leases"][ask.key] = lease | {"until": now + ask.ttl_ns}
            return Grant(ask.key, ask.token, lease["fence"], ask.token)

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        with self._state(timeout_ns) as (state, now):
            answers: list[bool | None] = []
            for renewal in renewals:
                lease = state["leases"].get(renewal.key)
                answers.append(lease is not None and lease["token"] == renewal.token)
                if answers[-1]:
                    lease["until"] = now + renewal.ttl_ns
            return answers

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        with self._state(timeout_ns) as (state, now):
            lease = state["leases"].get(key)
            if lease is None or lease["token"] != token:
                return False
            if keep_ns <= 0:
                del state["leases"][key]
            else:
                lease["token"] = ""
                lease["until"] = min(lease["until"], now + keep_ns)
            return True

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        with self._state(timeout_ns) as (state, now):
            lease = state["leases"].get(key)
            return None if lease is None else _holding(key, lease, now)

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        with self._state(timeout_ns) as (state, now):
            keys = sorted(key for key in state["leases"] if key.startswith(prefix) and key > after)
            return [_holding(key, state["leases"][key], now) for key in keys[: max(0, limit)]]

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        with self._state(timeout_ns) as (state, now):
            lease = state["leases"].pop(key, None)
            if lease is None:
                return None
            state["fence"] = max(state["fence"] + 1, now // 1000)
            state["audit"].append([now, key, actor, reason, lease["owner"], lease["fence"], state["fence"]])
            return _record(state["audit"][-1])

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        with self._state(timeout_ns) as (state, _now):
            return [_record(each) for each in reversed(state["audit"][-limit:] if limit > 0 else [])]

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """Do nothing: there are no queues."""

    async def watch(self, key: str, timeout_ns: int = 0) -> Watch:
        raise NotImplementedError("jsonfile does not claim wakeups")

    async def ping(self, timeout_ns: int) -> None:
        with self._state(timeout_ns):
            pass

    async def close(self) -> None:
        """Nothing is kept open."""

    @contextmanager
    def _state(self, timeout_ns: int) -> Iterator[tuple[State, int]]:
        """Lock the file, drop what has expired, and replace the file atomically if anything changed."""
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic_ns() + timeout_ns
            while not _locked(lock):
                if time.monotonic_ns() >= deadline:
                    raise Unavailable(f"{self._path} was locked for longer than the time limit")
                time.sleep(0.0005)
            before = self._path.read_text() if self._path.exists() else '{"fence": 0, "leases": {}, "audit": []}'
            state: State = json.loads(before)
            now = time.time_ns()
            state["leases"] = {key: each for key, each in state["leases"].items() if each["until"] > now}
            yield state, now
            after = json.dumps(state)
            if after != before:
                fresh = self._path.with_suffix(".new")
                fresh.write_text(after)
                fresh.replace(self._path)
        finally:
            os.close(lock)


async def _threaded(call: Coroutine[Any, Any, T]) -> T:
    return await asyncio.to_thread(run_now, call)


class AsyncJsonFileStore(JsonFileStore):
    """The asyncio store: each call of the blocking one, in a thread."""

    async def acquire(self, *args: Any) -> Grant | Busy:
        return await _threaded(JsonFileStore.acquire(self, *args))

    async def renew_many(self, *args: Any) -> list[bool | None]:
        return await _threaded(JsonFileStore.renew_many(self, *args))

    async def release(self, *args: Any) -> bool:
        return await _threaded(JsonFileStore.release(self, *args))

    async def inspect(self, *args: Any) -> Holding | None:
        return await _threaded(JsonFileStore.inspect(self, *args))

    async def holdings(self, *args: Any) -> list[Holding]:
        return await _threaded(JsonFileStore.holdings(self, *args))

    async def force_release(self, *args: Any) -> AuditRecord | None:
        return await _threaded(JsonFileStore.force_release(self, *args))

    async def audit(self, *args: Any) -> list[AuditRecord]:
        return await _threaded(JsonFileStore.audit(self, *args))

    async def ping(self, *args: Any) -> None:
        await _threaded(JsonFileStore.ping(self, *args))


class JsonFileEngine:
    """One file, and its stores for threads and for event loops."""

    capabilities = CAPABILITIES

    def __init__(self, path: Path) -> None:
        self._path = path
        self.blocking = JsonFileStore(path)

    def asynchronous(self) -> AsyncJsonFileStore:
        """Make a store for one event loop."""
        return AsyncJsonFileStore(self._path)


def open_engine(url: str) -> JsonFileEngine:
    """`jsonfile:///relative.json` or `jsonfile:////absolute/path.json`, as for SQLite."""
    path = url.partition("://")[2].removeprefix("/")
    if not path:
        raise BadInput("url", "names no file", "use jsonfile:///leases.json")
    return JsonFileEngine(Path(path))


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holding(key: str, lease: State, now: int) -> Holding:
    return Holding(
        key=key,
        owner=lease["owner"],
        fence=lease["fence"],
        family=lease["family"],
        granted_wall_ns=lease["since"],
        remaining_ns=lease["until"] - now,
        fingerprint=fingerprint(lease["token"]),
    )


def _record(row: Sequence[Any]) -> AuditRecord:
    wall, key, actor, reason, owner, previous, fence = row
    return AuditRecord(wall, "force_release", key, actor, reason, owner, previous, fence)


__all__ = ["CAPABILITIES", "JsonFileEngine", "JsonFileStore", "open_engine"]
