"""What goes wrong in a simulated world: each seed picks which kinds of fault exist, and how likely each is.

Swarm testing: a world with all kinds of faults hides bugs that need a long quiet period, so most seeds have only some
of the kinds, and settings at the edge of the allowed range.

There are five profiles. A *busy* world is small and frantic: leases of a second, held for moments, and a fault every
second. A *long* one is as production is: leases of ten seconds to two minutes, renewed for as long as an hour, on many
keys, for hours, with minutes between two faults. What needs many collisions is found by the first, what needs many
renewals by the second. A *guarded* world is as frantic as a busy one, and what its leases protect is behind a real
guard; in an *elected* one all programs are candidates for a few leaderships; in a *quorum* world leases are kept by a
majority of nodes, each with faults of its own. A profile and a seed name one world exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from holdfast.testing.sim.environment.clock import DRIFT_MAX_PPB
from holdfast.testing.sim.environment.network import Weather
from holdfast.types import MS, NS


class Fault(StrEnum):
    """One kind of trouble."""

    PAUSE = "pause"  # a process stops for a while (a collection of garbage, SIGSTOP) and continues
    BLOCK = "block"  # its event loop is blocked; its renewer is not
    STALL = "stall"  # its renewer is stuck; its event loop is not
    SUSPEND = "suspend"  # a host sleeps, and its monotonic clock with it
    CRASH = "crash"  # a process dies and another takes its place, remembering nothing
    STEP = "step"  # an operator sets a host's wall clock
    PARTITION = "partition"  # a host and the store do not hear each other, in one direction or both
    CLOG = "clog"  # the network keeps everything back, and lets it go in another order
    SERVER_PAUSE = "server_pause"  # the store stops for a while
    SERVER_RESTART = "server_restart"  # the store restarts and remembers
    SERVER_FORGETS = "server_forgets"  # the store restarts and has forgotten
    SERVER_LAGS = "server_lags"  # the store fails over to a replica that is behind
    SERVER_AILS = "server_ails"  # the store answers that it cannot serve
    SERVER_STEP = "server_step"  # an operator sets the store's wall clock
    FORCE = "force"  # an operator breaks a lock


class Profile(StrEnum):
    """What kind of life the worlds of a run have."""

    BUSY = "busy"
    LONG = "long"
    GUARDED = "guarded"
    ELECTED = "elected"
    QUORUM = "quorum"


class Guarding(StrEnum):
    """Which real guard stands before a resource of a guarded world."""

    ROW = "row"  # a row of a SQLite table, whose statements alone compare
    TRIGGERED = "triggered"  # the same, in a table whose triggers hold every client to the fence
    FILE = "file"  # a file in a folder
    INBOX = "inbox"  # a consumer of messages that come at least once, with a guarded row behind it


@dataclass(slots=True)
class Swarm:
    """The settings of one world."""

    profile: Profile = Profile.BUSY
    hosts: int = 3
    clients: int = 2  # on each host
    keys: int = 2
    ttls_ns: list[int] = field(default_factory=lambda: [NS])
    phase_ns: int = 30 * NS  # how long things go wrong
    request_timeout_ns: int = 2 * NS
    weather: Weather = field(default_factory=Weather)
    faults: list[Fault] = field(default_factory=list)
    every_ns: int = 3 * NS  # mean time between two faults
    drift_ppb: int = 0  # how far host and store clocks may run off, each
    failpoints: int = 0  # in thousandths: a pause exactly between a check and what depends on it
    between: int | None = None  # in thousandths: the same, where it tempts most: between check and write
    late: int = 0  # in thousandths of guarded writes: one that dawdles until its sender may have lost the lease
    cancels: int = 100  # in thousandths of sessions
    hot: int = 0  # in thousandths of sessions: those that all want the first key
    guards: list[Guarding] = field(default_factory=list)  # one for each key, in guarded worlds
    dies: int = 0  # in thousandths of guarded steps: the process that takes it is killed in the middle of it
    nodes: int = 1  # that keep leases; with more than one a majority of them decides
    hedge_ns: int = 50 * MS  # how long the first of them may take before the next one is asked
    apart_ns: int = 0  # how far the wall clocks of the nodes are apart where one of them forgets
    stays_away: bool = True  # a node that has forgotten does, for as long as the longest lease

    def longest_ttl_ns(self) -> int:
        """The longest lease in this world."""
        return max(self.ttls_ns)


def draw_swarm(seed: int, profile: Profile = Profile.BUSY) -> Swarm:
    """The settings of the world of this seed."""
    return _DRAWN[profile](seed)


def _draw_busy(seed: int) -> Swarm:
    return _frantic(random.Random(f"{seed}/swarm"))  # noqa: S311 - a world must be repeatable


def _frantic(chance: random.Random) -> Swarm:
    ttls = chance.sample([200 * MS, 500 * MS, NS, 3 * NS, 8 * NS], chance.randint(1, 2))
    weather = Weather(
        usual_ns=chance.choice([MS, 3 * MS, 20 * MS]),
        slow=chance.choice([0, 0, 20, 100]),
        slowest_ns=chance.choice([100 * MS, NS, 4 * NS]),
        lost=chance.choice([0, 0, 10, 60]),
        repeated=chance.choice([0, 0, 20, 100]),
    )
    return Swarm(
        hosts=chance.randint(2, 3),
        clients=chance.randint(1, 2),
        keys=chance.randint(1, 2),
        ttls_ns=ttls,
        phase_ns=chance.randint(15, 30) * NS,
        request_timeout_ns=chance.choice([150 * MS, 500 * MS, 2 * NS]),
        weather=weather,
        faults=[fault for fault in Fault if chance.random() < 0.35],
        every_ns=chance.choice([500 * MS, NS, 4 * NS]),
        drift_ppb=chance.choice([0, DRIFT_MAX_PPB, DRIFT_MAX_PPB]),
        failpoints=chance.choice([0, 5, 30]),
        cancels=chance.choice([0, 100, 300]),
    )


def _draw_long(seed: int) -> Swarm:
    chance = random.Random(f"long/{seed}/swarm")  # noqa: S311 - a world must be repeatable
    weather = Weather(
        usual_ns=chance.choice([MS, 3 * MS, 20 * MS]),
        slow=chance.choice([0, 2, 20]),
        slowest_ns=chance.choice([NS, 4 * NS, 20 * NS]),
        lost=chance.choice([0, 0, 2, 20]),
        repeated=chance.choice([0, 0, 5, 50]),
        repeat_after_ns=chance.choice([4 * NS, 60 * NS]),
    )
    keys = chance.randint(8, 40)
    hosts = chance.randint(2, 5)
    return Swarm(
        profile=Profile.LONG,
        hosts=hosts,
        clients=max(1, keys * chance.randint(80, 150) // 100 // hosts),
        keys=keys,
        ttls_ns=chance.sample([10 * NS, 20 * NS, 30 * NS, 60 * NS, 60 * NS, 90 * NS, 120 * NS], chance.randint(1, 3)),
        phase_ns=chance.choice([15, 15, 30, 30, 60, 120]) * 60 * NS,
        request_timeout_ns=chance.choice([500 * MS, 2 * NS, 2 * NS]),
        weather=weather,
        faults=[fault for fault in Fault if chance.random() < 0.35],
        every_ns=chance.choice([60 * NS, 180 * NS, 600 * NS, 1800 * NS]),
        drift_ppb=chance.choice([0, DRIFT_MAX_PPB, DRIFT_MAX_PPB]),
        failpoints=chance.choice([0, 0, 1]),
        between=chance.choice([0, 10, 50, 200]),
        late=chance.choice([0, 50, 150]),
        cancels=chance.choice([0, 50, 200]),
        hot=chance.choice([0, 200, 400]),
    )


def _draw_guarded(seed: int) -> Swarm:
    chance = random.Random(f"guarded/{seed}/swarm")  # noqa: S311 - a world must be repeatable
    keys = chance.choice([1, 1, 2])
    return replace(
        _frantic(chance),
        profile=Profile.GUARDED,
        hosts=chance.randint(2, 4),
        clients=2,
        keys=keys,
        ttls_ns=chance.sample([500 * MS, NS, 3 * NS], chance.randint(1, 2)),
        # A program that waits long for a late write still holds its lease, so the write is not stale.
        request_timeout_ns=chance.choice([150 * MS, 150 * MS, 500 * MS]),
        between=chance.choice([0, 50, 200]),
        late=chance.choice([0, 100, 300]),
        cancels=chance.choice([0, 50, 200]),
        guards=[chance.choice(list(Guarding)) for _ in range(keys)],
        dies=chance.choice([0, 50, 150]),
    )


def _draw_elected(seed: int) -> Swarm:
    chance = random.Random(f"elected/{seed}/swarm")  # noqa: S311 - a world must be repeatable
    return replace(
        _frantic(chance),
        profile=Profile.ELECTED,
        hosts=chance.randint(3, 5),
        clients=chance.randint(1, 2),
        ttls_ns=[chance.choice([NS, 3 * NS, 8 * NS])],
        request_timeout_ns=chance.choice([150 * MS, 500 * MS]),
        cancels=chance.choice([0, 50, 200]),
    )


def _draw_quorum(seed: int) -> Swarm:
    chance = random.Random(f"quorum/{seed}/swarm")  # noqa: S311 - a world must be repeatable
    drawn = _frantic(chance)
    # Fences of nodes that forget are ordered by clocks. So either nodes forget, or their clocks may say anything.
    unwanted = chance.choice([{Fault.SERVER_FORGETS, Fault.SERVER_LAGS}, {Fault.SERVER_STEP}])
    cuts = chance.choice([[], [Fault.PARTITION], [Fault.PARTITION] * 3])  # where a quorum differs most from one store
    return replace(
        drawn,
        profile=Profile.QUORUM,
        hosts=chance.randint(2, 4),
        ttls_ns=chance.sample([500 * MS, NS, 3 * NS], chance.randint(1, 2)),
        phase_ns=chance.randint(10, 20) * NS,
        request_timeout_ns=chance.choice([150 * MS, 500 * MS]),
        faults=[*cuts, *(fault for fault in drawn.faults if fault not in unwanted)],
        nodes=chance.choice([3, 5, 5, 5]),
        hedge_ns=chance.choice([5 * MS, 50 * MS]),
        apart_ns=100 * MS,
    )


_DRAWN: Final[dict[Profile, Callable[[int], Swarm]]] = {
    Profile.BUSY: _draw_busy,
    Profile.LONG: _draw_long,
    Profile.GUARDED: _draw_guarded,
    Profile.ELECTED: _draw_elected,
    Profile.QUORUM: _draw_quorum,
}
