"""Real processes: a holder is stopped for longer than its lease lasts, another takes over, and the first wakes up.

The stop is placed, by name, between the check of the lease and the write: the one moment that no check in the holder
can cover. What is left then is the storage, and whether it was told of the newer holder in time.
"""

from __future__ import annotations

import base64
import os
import pickle
import select
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.guards.conftest import ENGINES
from e2e.guards.storages import Place, every_place
from support.faults.freeze import state_of
from support.load.processes import LIMIT_S, Process, environment, until

TTL_S = 1.0  # of the holder that is stopped; no thread renews while the process is stopped
LONG_S = 600.0

on_every_place = pytest.mark.parametrize("place", every_place())
in_every_colour = pytest.mark.parametrize("place", every_place(colours=True))
with_every_engine = pytest.mark.parametrize("leases", ENGINES, indirect=True)


class Writer(Process):
    """A process that holds a lease and writes to the resource."""

    def __init__(self) -> None:
        self._url = ""  # of the leases, when it knows them
        self.popen = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("section_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        self.checks: dict[str, int] = {}  # how often the lease is checked in a step; most guards do so once

    def open(self, leases: str, factory: Any, resource: str) -> None:
        """Have it turn to a resource; `ready` waits until it has."""
        pickled = base64.b64encode(pickle.dumps(factory)).decode()
        self._url = leases
        self.tell("open", leases=leases, factory=pickled, resource=resource)
        self.checks = {}

    def ready(self) -> None:
        assert self.answer() == {"ready": True}

    def close(self) -> None:
        """Have it let go of everything: it is used again. What it said is read, so that the pipe never fills up."""
        assert self.do("close") == {"closed": True}
        assert self.popen.stderr is not None
        said = b""
        while select.select([self.popen.stderr], [], [], 0)[0]:
            said += os.read(self.popen.stderr.fileno(), 65_536)
        assert b"Traceback" not in said, said.decode(errors="replace")[-2000:]

    def enter(self) -> str | None:
        """Register and read; it must be let in."""
        answer = self.do("step", what="enter")
        assert answer["error"] is None, answer
        value: str | None = answer["value"]
        return value

    def look(self) -> tuple[str | None, int | None]:
        found = self.do("look")
        return found["value"], found["fence"]

    def rehearse(self, value: str) -> None:
        """Make the resource and write it in both ways, to learn where the last check of the lease is."""
        self.do("acquire", ttl=LONG_S)
        assert self.do("step", what="overwrite", value=value)["error"] is None
        assert self.enter() == value
        for what in ("write", "overwrite"):
            answer = self.do("step", what=what, value=f"{value} by {what}")
            assert answer["error"] is None, answer
            self.checks[what] = answer["reached"].count("guard.admitted")
        assert self.do("step", what="overwrite", value=value)["error"] is None
        assert self.do("release") == {"released": True}

    def stop_before(self, what: str, value: str) -> None:
        """Have it begin a write and stand still when its lease has been checked for the last time."""
        self.tell("step", what=what, value=value, stop_at=self.checks[what])
        until(lambda: state_of(self.popen.pid) == "T", "it stands still between check and write")


@contextmanager
def two_writers(place: Place, leases: str, request: pytest.FixtureRequest) -> Iterator[tuple[Writer, Writer]]:
    """A resource that exists, one who will hold its lock first, and one who will be next."""
    factory, resource = place.made(request), f"account-{uuid.uuid4().hex}"
    idle: list[Writer] = request.getfixturevalue("idle_writers")
    writers = [idle.pop() if idle else Writer() for _ in range(2)]
    try:
        for writer in writers:
            writer.open(leases, factory, resource)
        for writer in writers:
            writer.ready()
        old, new = writers
        old.rehearse("opened")
        yield old, new
        for writer in writers:
            writer.close()
    except BaseException:  # its state is unknown
        for writer in writers:
            writer.end()
        raise
    idle.extend(writers)


@pytest.fixture(scope="module")
def idle_writers() -> Iterator[list[Writer]]:
    """Processes that have nothing to do. Starting one costs more than all that it is told in a test."""
    idle: list[Writer] = []
    yield idle
    for writer in idle:
        writer.end()


def counted(writer: Writer, before: dict[str, int]) -> dict[str, int]:
    """What the guards of a process have counted since."""
    after = writer.do("statistics")
    return {name: after[name] - before[name] for name in after}


@pytest.mark.requires("R28", "R29", "R34", "R47", "R65", "R71", "R73")
@with_every_engine
@in_every_colour
def test_a_writer_that_was_stopped_between_check_and_write_is_refused_and_counted(
    place: Place, leases: str, request: pytest.FixtureRequest
) -> None:
    with two_writers(place, leases, request) as (old, new):
        older = old.do("acquire", ttl=TTL_S)["fence"]
        assert old.enter() == "opened"
        before = old.do("statistics")
        old.stop_before("write", "opened, and late")
        newer = new.do("acquire", ttl=LONG_S, timeout=LIMIT_S)["fence"]  # granted when the lease has run out
        assert newer > older
        assert new.enter() == "opened"
        assert new.do("step", what="write", value="opened, and newer")["error"] is None
        old.resume()
        refused = old.answer()
        assert (refused["error"], refused["fence"], refused["seen"]) == ("FencedOut", older, newer), refused
        assert refused["reached"][0] == "guard.admitted"  # the lease was still held when it was asked
        assert counted(old, before) == {"accepted": 0, "refused": 1, "lost": 0}
        assert new.look() == ("opened, and newer", newer)
        assert new.do("ensure")["error"] is None
        assert new.do("step", what="write", value="opened, and newest")["error"] is None
        assert new.look() == ("opened, and newest", newer)


@pytest.mark.requires("R29", "R47", "R65", "R73")
@on_every_place
def test_a_writer_that_wakes_up_before_its_check_sends_nothing(
    place: Place, leases: str, request: pytest.FixtureRequest
) -> None:
    with two_writers(place, leases, request) as (old, new):
        older = old.do("acquire", ttl=TTL_S)["fence"]
        assert old.enter() == "opened"
        before = old.do("statistics")
        old.pause()
        newer = new.do("acquire", ttl=LONG_S, timeout=LIMIT_S)["fence"]
        old.tell("step", what="write", value="stale")  # the very first thing it does when it wakes up
        old.resume()
        lost = old.answer()
        assert (lost["error"], lost["fence"], lost["reached"]) == ("LeaseLost", older, []), lost
        assert new.look() == ("opened", older)
        assert new.enter() == "opened"
        again = old.do("step", what="write", value="stale")
        assert again["error"] in {"FencedOut", "LeaseLost"}  # whether it can ask who was there depends on the place
        assert again["seen"] == (newer if again["error"] == "FencedOut" else None)
        assert again["reached"] == []
        refused = int(again["error"] == "FencedOut")
        lost_count = 2 - refused if place.sender_counts else 0
        assert counted(old, before) == {"accepted": 0, "refused": refused, "lost": lost_count}
        assert new.look() == ("opened", newer)


@pytest.mark.requires("R28", "R65", "R71")
@on_every_place
def test_checking_the_fence_on_writes_alone_loses_an_acknowledged_update(
    place: Place, leases: str, request: pytest.FixtureRequest
) -> None:
    """Why there is `enter`: both writes are accepted in the order of their fences, and yet one of them is lost."""
    with two_writers(place, leases, request) as (old, new):
        old.do("acquire", ttl=TTL_S)
        assert old.look()[0] == "opened"
        old.stop_before("overwrite", "opened +1")
        newer = new.do("acquire", ttl=LONG_S, timeout=LIMIT_S)["fence"]
        read, _ = new.look()  # the storage does not learn of the newer holder
        old.resume()
        assert old.answer()["error"] is None  # acknowledged
        assert new.look()[0] == "opened +1"
        assert new.do("step", what="overwrite", value=f"{read} +2")["error"] is None
        assert new.look() == ("opened +2", newer)  # and lost


@pytest.mark.requires("R28", "R34", "R65", "R71")
@on_every_place
def test_entering_before_the_read_loses_nothing_that_was_acknowledged(
    place: Place, leases: str, request: pytest.FixtureRequest
) -> None:
    """The same moments in the same order, with the guard as it is meant to be used."""
    with two_writers(place, leases, request) as (old, new):
        older = old.do("acquire", ttl=TTL_S)["fence"]
        assert old.enter() == "opened"
        old.stop_before("write", "opened +1")
        newer = new.do("acquire", ttl=LONG_S, timeout=LIMIT_S)["fence"]
        read = new.enter()
        old.resume()
        refused = old.answer()
        assert (refused["error"], refused["fence"], refused["seen"]) == ("FencedOut", older, newer), refused
        assert new.look() == ("opened", newer)
        assert new.do("step", what="write", value=f"{read} +2")["error"] is None
        assert new.look() == ("opened +2", newer)
        # The refused writer knows it, and repeats its work under a grant of its own: now both updates are there.
        assert new.do("release") == {"released": True}
        newest = old.do("acquire", ttl=LONG_S, timeout=LIMIT_S)["fence"]
        assert old.do("step", what="write", value=f"{old.enter()} +1")["error"] is None
        assert new.look() == ("opened +2 +1", newest)
