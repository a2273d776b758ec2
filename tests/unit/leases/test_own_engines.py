"""`connect(engine=…)`: locks on an engine that the caller made, in both colors."""

from __future__ import annotations

import asyncio
import pickle

import pytest

import holdfast
from holdfast.errors import BadInput
from holdfast.stores import Capabilities, Engine
from holdfast.stores.memory.store import MemoryEngine


def test_locks_of_both_colours_share_the_given_engine() -> None:
    engine: Engine = MemoryEngine()

    async def elsewhere() -> object:
        async with holdfast.aio.connect(engine=engine) as locks:
            return await locks.lock("invoice:42").try_acquire()

    with holdfast.connect(engine=engine) as locks:
        assert locks.engine is engine
        with locks.lock("invoice:42", ttl=30) as lease:
            assert asyncio.run(elsewhere()) is None
            assert lease.held


def test_a_url_and_an_engine_are_one_too_many() -> None:
    with pytest.raises(BadInput, match="url, engine and client: more than one of them is given"):
        holdfast.connect("memory://", engine=MemoryEngine())


def test_the_locks_of_an_engine_are_not_sent_to_other_processes() -> None:
    with holdfast.connect(engine=MemoryEngine()) as locks, pytest.raises(TypeError, match="by URL"):
        pickle.dumps(locks.lock("invoice:42"))


class Half:
    """An engine under construction."""

    capabilities: object = None
    blocking: object = None


def test_what_an_engine_lacks_is_named() -> None:
    half = Half()
    for attribute, value, lacks in (
        ("capabilities", None, "lacks capabilities"),
        ("capabilities", MemoryEngine().capabilities, "lacks blocking"),
        ("blocking", MemoryEngine().blocking, r"lacks asynchronous\(\)"),
    ):
        setattr(half, attribute, value)
        for connect in (holdfast.connect, holdfast.aio.connect):
            with pytest.raises(BadInput, match=f"engine: Half is not an engine: it {lacks}"):
                connect(engine=half)  # type: ignore[arg-type]  # that is the point
    assert isinstance(half.capabilities, Capabilities)
