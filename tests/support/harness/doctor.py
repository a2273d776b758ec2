"""Diagnoses of stores, as `holdfast doctor` makes them, and their findings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.core.ports import Diagnosable
from holdfast.ops.doctor import Diagnosis, examine
from holdfast.runtime.run_sync import run_now
from holdfast.stores.registry import Engine, open_engine
from holdfast.types import NS

Look: TypeAlias = Callable[..., Diagnosis]


@contextmanager
def looking() -> Iterator[Look]:
    """Diagnoses the store of a URL. All are closed at the end."""
    engines: list[Engine] = []

    def examined(url: str, **settings: Any) -> Diagnosis:
        engine = open_engine(url)
        engines.append(engine)
        settings.setdefault("ttl_ns", 30 * NS)
        settings.setdefault("request_timeout_ns", 2 * NS)
        return examine(engine.blocking, **settings)

    yield examined
    for engine in engines:
        run_now(engine.blocking.close())


def answered(url: str, timeout_ns: int = 2 * NS) -> Diagnosis:
    """What the server says about itself, without measurements."""
    engine = open_engine(url)
    try:
        capabilities = engine.blocking.capabilities
        assert isinstance(engine.blocking, Diagnosable)
        found = run_now(engine.blocking.diagnose(timeout_ns))
        return Diagnosis(capabilities.engine, capabilities.guarantee, tuple(found))
    finally:
        run_now(engine.blocking.close())


def awaited(url: str, timeout_ns: int = 2 * NS) -> Diagnosis:
    """The same from the store for asyncio."""

    async def ask() -> Diagnosis:
        store = open_engine(url).asynchronous()
        assert isinstance(store, Diagnosable)
        try:
            found = await store.diagnose(timeout_ns)
        finally:
            await store.close()
        return Diagnosis(store.capabilities.engine, store.capabilities.guarantee, tuple(found))

    return asyncio.run(ask())


def of(found: Diagnosis, check: str) -> StoreFinding:
    """The only finding of a check."""
    [one] = [each for each in found.findings if each.check == check]
    return one


def bad(found: Diagnosis) -> set[str]:
    """The checks with warnings or worse."""
    return {each.check for each in found.findings if each.severity not in (Severity.OK, Severity.NOTE)}
