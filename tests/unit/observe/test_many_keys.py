"""However many names locks have, what is measured of them stays small."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Iterable, Iterator
from itertools import cycle

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import holdfast
from holdfast.aio import connect
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.observe import prometheus
from holdfast.runtime.recorder import Recorder
from support.fixtures.databases import until

USED = 10_000  # names that are really locked
NAMED = 1_000_000  # names of which everything is counted that a lock could bring about
MADE_UP = 20_000  # families, and risk classes
SERIES_MAX, BYTES_MAX = 400, 5_000_000
BLOCKS_MAX = 20_000  # of memory that more names may cost: a fiftieth of one for each


def series(registry: CollectorRegistry) -> int:
    return sum(not line.startswith(b"#") for line in generate_latest(registry).splitlines())


@pytest.mark.threat("X14")
def test_the_number_of_series_does_not_depend_on_how_many_locks_there_are() -> None:
    registry = CollectorRegistry()
    with holdfast.connect("memory://many-keys") as locks:
        prometheus.register(locks, registry=registry)

        def use(count: int) -> tuple[int, int]:
            for number in range(count):
                token = locks.acquire_token(f"invoice:{count}:{number}", 30)
                locks.release_token(f"invoice:{count}:{number}", token)
            text = generate_latest(registry)
            assert b"invoice:" not in text
            return series(registry), len(text)

        unused = series(registry)  # what the process has counted so far, in whatever test
        few, many = use(10), use(USED)
    assert few[0] == many[0] <= unused + 200
    assert many[1] < 1.2 * few[1]  # longer numbers


@pytest.fixture
def _quiet() -> Iterator[None]:
    """A million losses are no news here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


MEASURED = (
    *((Measure.WAIT, each) for each in MeasuredOutcome if each not in {"released", "lost", "answered", "unanswered"}),
    *((Measure.HOLD, each) for each in (MeasuredOutcome.RELEASED, MeasuredOutcome.LOST)),
    *((Measure.LEFT, each) for each in (MeasuredOutcome.ANSWERED,)),
)


def happened(recorder: Recorder, names: Iterator[tuple[str, str, str]], kinds: Iterable[EventKind] = EventKind) -> None:
    """Everything that is counted of a lock, one thing for each name: as the flows and the renewer tell of it."""
    each_kind, each_measure = cycle(kinds), cycle(MEASURED)
    for number, (key, family, risk) in enumerate(names):
        kind, (measure, outcome) = next(each_kind), next(each_measure)
        recorder.waits(key, family)
        recorder.measured(measure, family, outcome, number)
        if recorder.tally(kind, family):
            recorder.note(Record(kind, number, key, family, "me@host:1/a", fence=number, risk=risk, reason="expired"))
        recorder.waits_no_more(key)


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.threat("X14")
@pytest.mark.usefixtures("_quiet")
def test_a_million_names_cost_no_series_and_no_memory() -> None:
    registry = CollectorRegistry()
    with holdfast.connect("memory://a-million") as locks:
        prometheus.register(locks, registry=registry)
        unused = series(registry)  # what the process has counted so far, in whatever test
        happened(locks.manager.recorder, ((f"few:{n}", "invoice", "low") for n in range(1_000)))
        few, before = series(registry), blocks()
        happened(locks.manager.recorder, ((f"invoice:{n}", "invoice", "low") for n in range(NAMED)))
        text = generate_latest(registry)
        assert series(registry) == few <= unused + SERIES_MAX
        assert len(text) < BYTES_MAX
        assert b"invoice:" not in text
        assert blocks() - before < BLOCKS_MAX


@pytest.mark.threat("X14")
@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("what", ["family", "risk"])
def test_families_and_classes_that_are_made_up_without_end_are_counted_together(what: str) -> None:
    registry = CollectorRegistry()
    # Of the classes that run without the store there are those of the policy; what it does not know is denied.
    kinds = [*EventKind] if what == "family" else [EventKind.DENIED]
    with holdfast.connect("memory://made-up") as locks:
        prometheus.register(locks, registry=registry)
        sizes: list[tuple[int, int]] = []
        for _ in range(2):
            made = (f"{what}-{len(sizes)}-{n}" for n in range(MADE_UP))
            names = ((each, each, "low") if what == "family" else (each, "invoice", each) for each in made)
            happened(locks.manager.recorder, names, kinds)
            sizes.append((series(registry), blocks()))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] - sizes[0][1] < BLOCKS_MAX


@pytest.mark.threat("X14")
def test_families_of_real_locks_are_counted_together_too() -> None:
    registry = CollectorRegistry()
    with holdfast.connect("memory://many-families") as locks:
        prometheus.register(locks, registry=registry)
        sizes: list[int] = []
        for _ in range(2):
            for _ in range(300):
                with locks.lock("k", ttl=30, family=f"family-{len(sizes)}-{locks.manager.entropy.token()[:12]}"):
                    pass
            sizes.append(series(registry))
    assert sizes[0] == sizes[1]


@pytest.mark.threat("X15")
@pytest.mark.asyncio
async def test_of_all_waiters_of_a_process_one_stands_at_the_store() -> None:
    async with connect("memory://many-waiters") as locks, connect("memory://many-waiters") as others:
        held = await others.lock("k", ttl=60).acquire()
        waiters = [asyncio.create_task(locks.lock("k", ttl=60).acquire(timeout=60)) for _ in range(2_000)]
        await until(lambda: locks.statistics().waiting)
        assert ((await others.inspect("k")).waiters or 0) <= 1
        for each in waiters:
            each.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        await held.release()
        assert locks.statistics().waiting == 0
        assert (await others.inspect("k")).waiters == 0
