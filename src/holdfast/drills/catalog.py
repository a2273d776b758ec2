"""The catalog of drills: name, purpose, needs, duration and scenes of each.

`names` and purposes are cheap to import; the scenarios are imported when a drill runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from holdfast.drills.env import clocks
from holdfast.drills.env.stage import DrillHarness
from holdfast.drills.incidents import incident_run
from holdfast.drills.model import OWN_SERVERS, DrillPlan, Guard, Need
from holdfast.drills.scenarios import (
    clock_jump,
    clock_lag,
    compound,
    failover,
    kill_plane,
    outage,
    pause,
    pause_and_delay,
    quorum_loss,
    retry_waves,
    rolling_restart,
    server_loss,
    soak,
    split_brain,
    storm,
    suspend,
)
from holdfast.drills.scenarios import kill as killing
from holdfast.errors import BadInput

INCIDENTS_DRILL: Final = "incidents"

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "quick": "The essentials of pause, kill and compound: updates lost without fences, and none with them.",
        "pause": "A holder stopped for longer than its lease, between check and write: the loss, and how a guard "
        "prevents it.",
        "kill": "Holders, a scheduler and a worker killed without grace: takeover against the SLO, and no job ended "
        "twice.",
        "compound": "Failing renewals, an expired lease, a stale release and a late write, all in one scene.",
        "outage": "The store unreachable for 30 s (--duration) under each error policy: fallbacks, duplicates, "
        "recovery.",
        "retry-waves": "Many contenders for one lock, with a fixed delay, with ±200 ms, and exponential: waves, waits "
        "and retries.",
        "pause-and-delay": "Long pauses and a slow network at the same time.",
        "failover": "A Redis primary lost with a lagging replica promoted, one cut off so that both sides grant, nodes "
        "of a quorum lost: the fence decides. With --store sentinel, postgres, etcd or nats: the leader of that store "
        "lost.",
        "clock": "Clocks of stores and hosts jump by a minute and by an hour, and a host is suspended: the fence "
        "decides.",
        "storm": "10,000 waiters for one lock, and 100,000 concurrent leases: order, waits, requests and memory are "
        "bounded.",
        "rolling-restart": "Every process of a plane replaced under load: no job lost or repeated, no lease "
        "waited out.",
        "hung-handler": "Handlers fill all slots and never return: `holdfast why` and an alert must name them.",
        "flush": "A Redis forgets the leases of running jobs: `holdfast why` and an alert must name that.",
        "slow-store": "Each answer of a Redis takes three seconds: it must be called slow, and not down.",
        "bus-outage": "NATS is killed: `holdfast why` and an alert must name it.",
        "database-outage": "Postgres is killed: it must be named, and no innocent server.",
        "clock-skew": "The clock of a worker is an hour ahead: `holdfast why` and an alert must name it.",
        "poison": "A job kills every worker that runs it: it must be named before more workers die.",
        "tenant-flood": "One tenant fills the queue: it must be named, and not a lack of workers.",
        "disk-full": "The disk of the database is full: `holdfast why` and an alert must name it (needs root).",
        "topic-without-workers": "Jobs wait for a topic that no worker serves: it must be named.",
        INCIDENTS_DRILL: "Every incident: which ones `holdfast why` and the alerts name, and how soon.",
        "soak": "The other drills in rounds for the given --duration, beside processes whose memory, "
        "threads and files must stay flat.",
    }
)


SLACK_S: Final = 60.0  # for processes to start on a busy machine
_KILLS: Final = 6
INCIDENT_S: Final = 15.0  # of one incident
_CLOCK_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill."""

    name: str
    shows: str  # one sentence
    proves: tuple[str, ...]  # requirement ids
    need: Need
    seconds: float  # approximate duration with a TTL of one second
    ttls: int  # the number of lease expiries that it waits for
    play: Callable[[DrillHarness, float], None]
    plane: bool = False  # it runs a whole plane, possibly on a configured deployment
    cuts: bool = True  # it makes the store unreachable

    def limit_s(self, plan: DrillPlan) -> float:
        """The time limit; afterwards every missing event counts as broken."""
        wanted = self.seconds if plan.duration_s is None else plan.duration_s
        return SLACK_S + 3.0 * (plan.load * wanted + self.ttls * plan.ttl_s)


def _pause(stage: DrillHarness, seconds: float) -> None:
    rounds = pause.rounds_for(seconds, stage.plan.ttl_s, len(Guard))
    for guard in Guard:
        pause.play(stage, guard, rounds)


def _kill(stage: DrillHarness, seconds: float) -> None:
    killing.play(stage, max(3, min(_KILLS, int(seconds / (stage.plan.ttl_s + 1.0)))))
    kill_plane.play(stage)
    if stage.plan.url is not None and stage.plan.deployment is None:
        stage.cannot.append("the plane used its own SQLite file: run it on a deployment with --config")


def _compound(stage: DrillHarness, seconds: float) -> None:
    for _ in range(max(1, int(seconds / 2 / (2 * stage.plan.ttl_s + 2.0)))):
        for guard in (Guard.OFF, Guard.ON):
            compound.play(stage, guard)


def _pause_and_delay(stage: DrillHarness, seconds: float) -> None:
    rounds = pause.rounds_for(seconds, 1.5 * stage.plan.ttl_s, 2)
    for guard in (Guard.OFF, Guard.ON):
        pause_and_delay.play(stage, guard, rounds)


def _failover(stage: DrillHarness, seconds: float) -> None:
    if stage.plan.own in OWN_SERVERS:
        server_loss.play(stage)
        return
    rounds = max(2, int(seconds / 12))
    for guard in (Guard.OFF, Guard.ON):
        failover.play(stage, guard, rounds)
    for guard in (Guard.OFF, Guard.ON):
        split_brain.play(stage, guard, rounds)
    split_brain.play_bounded(stage)
    quorum_loss.play_replaced(stage)
    for guard in (Guard.OFF, Guard.ON):
        quorum_loss.play_forgotten(stage, guard, rounds)


def _clock(stage: DrillHarness, seconds: float) -> None:
    library = clocks.built(stage.directory)
    for _ in range(max(1, int(seconds / _CLOCK_S))):
        for guard in (Guard.OFF, Guard.ON):
            clock_jump.play_forward(stage, guard, library)
        clock_jump.play_back(stage, library)
        clock_lag.play(stage, library)
        suspend.play_jumps(stage, library)
        for guard in (Guard.OFF, Guard.ON):
            suspend.play_suspend(stage, guard, library)
        suspend.play_namespace(stage)


def _rolling_restart(stage: DrillHarness, seconds: float) -> None:
    rolling_restart.play(stage, max(1, int(seconds / rolling_restart.ROUND_S)))


def _soak(stage: DrillHarness, seconds: float) -> None:
    soak.play(stage, seconds, drill)


def _incidents(*names: str) -> Callable[[DrillHarness, float], None]:
    return lambda stage, _seconds: incident_run.play(stage, names or stage.plan.incidents)


def _quick(stage: DrillHarness, seconds: float) -> None:
    for guard in Guard:
        pause.play(stage, guard, 2)
    killing.play(stage, 3)
    _compound(stage, min(seconds, 1.0))


DRILLS: Final = (
    Drill(
        "quick",
        NAMES["quick"],
        ("R35", "R73", "R130"),
        Need.SHARED,
        seconds=15.0,
        ttls=11,
        play=_quick,
    ),
    Drill(
        "pause",
        NAMES["pause"],
        ("R73",),
        Need.SHARED,
        seconds=30.0,
        ttls=6,
        play=_pause,
    ),
    Drill(
        "kill",
        NAMES["kill"],
        ("R130", "R131", "R140"),
        Need.SHARED,
        seconds=20.0,
        ttls=8,
        play=_kill,
        plane=True,
        cuts=False,
    ),
    Drill(
        "compound",
        NAMES["compound"],
        ("R35",),
        Need.SHARED,
        seconds=8.0,
        ttls=4,
        play=_compound,
    ),
    Drill(
        "outage",
        NAMES["outage"],
        ("R90", "R97", "R107"),
        Need.SHARED,
        seconds=30.0,
        ttls=4,
        play=outage.play,
    ),
    Drill(
        "retry-waves",
        NAMES["retry-waves"],
        ("R153", "R154", "R157"),
        Need.SHARED,
        seconds=36.0,
        ttls=1,
        play=retry_waves.play,
    ),
    Drill(
        "pause-and-delay",
        NAMES["pause-and-delay"],
        ("R30",),
        Need.NETWORK,
        seconds=20.0,
        ttls=8,
        play=_pause_and_delay,
    ),
    Drill(
        "failover",
        NAMES["failover"],
        ("R73",),
        Need.SERVERS,
        seconds=36.0,
        ttls=12,
        play=_failover,
    ),
    Drill(
        "clock",
        NAMES["clock"],
        ("R73",),
        Need.CLOCKS,
        seconds=_CLOCK_S,
        ttls=18,
        play=_clock,
    ),
    Drill(
        "storm",
        NAMES["storm"],
        ("R48", "R68"),
        Need.SHARED,
        seconds=150.0,
        ttls=0,
        play=storm.play,
    ),
    Drill(
        "rolling-restart",
        NAMES["rolling-restart"],
        ("R131",),
        Need.PLANE,
        seconds=25.0,
        ttls=0,
        play=_rolling_restart,
        plane=True,
        cuts=False,
    ),
    *(
        Drill(
            each,
            NAMES[each],
            ("R25",),
            Need.FLEET,
            seconds=INCIDENT_S,
            ttls=0,
            play=_incidents(each),
            cuts=False,
        )
        for each in NAMES
        if each in incident_run.NAMED
    ),
    Drill(
        INCIDENTS_DRILL,
        NAMES[INCIDENTS_DRILL],
        ("R25",),
        Need.FLEET,
        seconds=INCIDENT_S * len(incident_run.NAMED),
        ttls=0,
        play=_incidents(),
        cuts=False,
    ),
    Drill(
        "soak",
        NAMES["soak"],
        ("R73", "R131"),
        Need.STORES,
        seconds=600.0,
        ttls=0,
        play=_soak,
    ),
)


def drill(name: str) -> Drill:
    """Return the drill with that name, or raise `BadInput` that lists all names."""
    found = next((each for each in DRILLS if each.name == name), None)
    if found is None:
        raise BadInput("drill", f"{name!r} is not a drill", f"use one of {', '.join(each.name for each in DRILLS)}")
    return found
