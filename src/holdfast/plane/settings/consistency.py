"""Checks that settings work together, with the arithmetic; and the takeover times that follow from them. Pure.

Settings that are valid alone can be wrong together. A replay after the time limit never happens, a retry delay longer
than a lease misses its chance, and a takeover within 30 s is impossible with a TTL of 60 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.core.lease.timing import settle
from holdfast.errors import BadInput
from holdfast.plane.bus.outbox import LATE_NS as OUTBOX_LATE_NS
from holdfast.plane.bus.outbox import POLL_NS as OUTBOX_LOOK_NS
from holdfast.plane.db.ports import STANDSTILL_NS
from holdfast.plane.fleet.registry import TTL_NS as WORKER_SILENCE_NS
from holdfast.plane.locks import registry as families
from holdfast.plane.loops.cadence import Mode, replay_problems
from holdfast.plane.settings.lock_times import FAMILY_KEYS, LOOPS, families_in_effect, family_in_effect, is_renewed
from holdfast.plane.settings.settings import KEYS, Settings
from holdfast.types import NS

_LOOPBACK: Final = ("127.", "localhost", "::1")


class TakeoverTime(NamedTuple):
    """The longest time until another process has the work of one that died."""

    what: str
    seconds: float
    because: str
    key: str  # the setting that decides it


def takeovers(settings: Settings) -> list[TakeoverTime]:
    """The takeover times of these settings. Time in the queue of a busy store or process is not included."""
    scheduler, worker = settings.scheduler, settings.worker
    retry = scheduler.busy_delay + scheduler.busy_jitter
    found = [
        TakeoverTime(
            "a job that a scheduler was deciding",
            max(scheduler.job_ttl, scheduler.silence) + retry,
            f"its lock lasts {scheduler.job_ttl:g} s, its message is silent for {scheduler.silence:g} s, and comes "
            f"again every {retry:g} s",
            "scheduler.ack_wait" if scheduler.silence > scheduler.job_ttl else "scheduler.job_ttl",
        ),
        TakeoverTime(
            "a job that a worker was running",
            worker.lease_ttl + retry,
            f"its lease and its message last {worker.lease_ttl:g} s, and it comes again every {retry:g} s",
            "worker.lease_ttl",
        ),
    ]
    found.append(
        TakeoverTime(
            "a run that an engine was advancing",
            settings.engine.run_ttl + retry,
            f"its lock lasts {settings.engine.run_ttl:g} s, its message is silent for half of that, and comes again "
            f"every {retry:g} s",
            "engine.run_ttl",
        )
    )
    found.append(
        TakeoverTime(
            "a job that was being approved",
            settings.approvals.lock_ttl + retry,
            f"the lock of a decision lasts {settings.approvals.lock_ttl:g} s, and messages come again every "
            f"{retry:g} s",
            "approvals.lock_ttl",
        )
    )
    if not settings.database_url.lower().startswith("sqlite:"):
        still = STANDSTILL_NS / NS
        because = f"Postgres ends a transaction that is idle for {still:g} s"
        found.append(TakeoverTime("rows that a stopped process had locked", still, because, "database"))
    if settings.bus is not None:
        late, look = OUTBOX_LATE_NS / NS, OUTBOX_LOOK_NS / NS
        because = f"other processes ignore it for {late:g} s, and check for such messages every {look:g} s"
        found.append(TakeoverTime("a message that was stored in the outbox and not sent", late + look, because, "bus"))
    for name, family in LOOPS.items():
        interval: float = settings.value(f"{name}.interval")
        ttl = family_in_effect(settings, family).ttl
        because = f"its lease lasts {ttl:g} s, and others check every {interval:g} s"
        found.append(TakeoverTime(f"the {name} loop", ttl + interval, because, f"{name}.interval"))
    return found


def problems(settings: Settings, *, only_database: bool = False) -> list[BadInput]:
    """Every conflict, each with its keys and a fix. `only_database`: other addresses may be missing."""
    found = _problems(settings, only_database=only_database)
    return [BadInput(_where(settings, *keys), problem, fix) for keys, problem, fix in found]


_Problem = tuple[tuple[str, ...], str, str]


def _problems(settings: Settings, *, only_database: bool) -> Iterator[_Problem]:
    if not only_database:
        yield from _stores(settings)
    yield from _delays(settings)
    yield from _leases(settings)
    yield from _times(settings)
    yield from _exposure(settings)
    yield from _audit(settings)


def _stores(settings: Settings) -> Iterator[_Problem]:
    if (settings.leases or "").lower().startswith("memory:"):
        yield ("leases",), "memory:// is private to one process", "use a file or a server that every process can reach"


def _delays(settings: Settings) -> Iterator[_Problem]:
    scheduler = settings.scheduler
    if scheduler.busy_jitter >= scheduler.busy_delay:
        yield (
            ("scheduler.busy_jitter", "scheduler.busy_delay"),
            f"a jitter of {scheduler.busy_jitter:g} s is not below the delay of {scheduler.busy_delay:g} s",
            "use a smaller jitter; 0 turns it off",
        )
        return
    told = (families.SCHEDULER_JOB, families.WORKER_JOB, families.WORKFLOW_RUN)
    ttls = {family.name: family_in_effect(settings, family).ttl for family in told}
    for name, ttl in ttls.items():
        try:
            scheduler.delays.check(round(ttl * NS))
        except BadInput as error:
            yield ("scheduler.busy_jitter",), f"{name}: {error.problem}", "use a smaller jitter"
    for key, delay in (("busy_delay", scheduler.busy_delay), ("backend_delay", scheduler.backend_delay)):
        shortest = min(ttls.values())
        if delay >= shortest:
            yield (
                (f"scheduler.{key}",),
                f"{delay:g} s is not below the shortest TTL of {shortest:g} s, so a retry would come after the lease",
                "use a shorter delay",
            )


def _leases(settings: Settings) -> Iterator[_Problem]:
    """TTL, renewal interval and failure budget of a family must work together, as for any lock."""
    for name, family in families_in_effect(settings).items():
        keys = FAMILY_KEYS[name]
        if is_renewed(settings, family):
            try:
                settle(ttl=family.ttl, renew_every=family.renew_every, failures=family.failures)
            except BadInput as error:
                yield (keys.renew_every, keys.ttl), f"{name}: {error.problem}", error.fix
            continue
        given = [key for key in (keys.renew_every, keys.failures) if settings.value(key) != KEYS[key].default]
        if given and keys.lead is not None:
            yield (
                (*given, keys.lead),
                f"{name} is held for its TTL and not renewed, because {keys.lead} is {Mode.ROTATING}",
                f"remove {' and '.join(given)}, or lead {Mode.STICKY}",
            )


def _times(settings: Settings) -> Iterator[_Problem]:
    states, replayer = settings.limits.states, round(settings.replayer.interval * NS)
    for problem in replay_problems(states, replayer, states.dispatched_ns // 2):
        state = problem.partition(" ")[0].lower()
        fix = "replay sooner, tick more often, or time out later"
        yield (f"limits.{state}", "limits.replay", "replayer.interval"), problem, fix
    if settings.cleanup.keys < settings.cleanup.jobs:
        problem = "a key would be deleted before its job"
        yield ("cleanup.keys", "cleanup.jobs"), problem, "keep keys at least as long as jobs"
    worker, grace = settings.worker, settings.grace
    silence = WORKER_SILENCE_NS / NS
    if 2.4 * worker.heartbeat > silence:
        yield (
            ("worker.heartbeat",),
            f"a worker counts as dead after {silence:g} s, and two heartbeats take up to {2.4 * worker.heartbeat:g} s",
            f"use at most {silence / 2.4:g}",
        )
    if worker.cancel_grace > grace:
        yield (
            ("worker.cancel_grace", "grace"),
            f"a cancelled function may run for {worker.cancel_grace:g} s, and the plane stops within {grace:g} s",
            "use a longer grace, or a shorter cancel_grace",
        )
    yield from _messages(settings)
    if settings.takeover is not None:
        for each in takeovers(settings):
            if each.seconds > settings.takeover and not each.what.endswith("cleanup loop"):
                problem = f"{each.what} is taken over after up to {each.seconds:g} s, not {settings.takeover:g}"
                fix = f"promise at least {each.seconds:g}, or make that shorter"
                yield ("takeover", each.key), f"{problem}: {each.because}", fix


def _messages(settings: Settings) -> Iterator[_Problem]:
    """A message must not be redelivered while its handler is healthy, nor later than the lock of a dead one expires."""
    ttl, silence = settings.scheduler.job_ttl, settings.scheduler.silence
    wait = families.SCHEDULER_JOB.acquire_timeout or 0.0
    keys = ("scheduler.ack_wait", "scheduler.job_ttl")
    if silence <= wait:
        derived = " (half of job_ttl)" if settings.scheduler.ack_wait is None else ""
        yield (
            keys,
            f"a handler may wait {wait:g} s for a lock, and its message is redelivered after {silence:g} s{derived}",
            f"use more than {wait:g} s, or a job_ttl above {2 * wait:g} s",
        )
    if silence > ttl:
        late = f"so others would have the job after {silence:g} s and not {ttl:g}"
        yield (
            keys,
            f"the lock of a dead scheduler lasts {ttl:g} s and its message is silent for {silence:g} s, {late}",
            f"use at most {ttl:g} s for ack_wait",
        )


def _exposure(settings: Settings) -> Iterator[_Problem]:
    hosts = {"api.host": settings.api.host}
    if settings.probe.enabled:
        hosts["probe.host"] = settings.probe.host
    for key, host in hosts.items():
        if settings.api.tokens is None and not host.startswith(_LOOPBACK):
            yield (
                (key, "api.tokens"),
                f"{host} can be reached from other hosts, and no tokens authenticate callers",
                "set a file of tokens, or listen at 127.0.0.1",
            )


def _audit(settings: Settings) -> Iterator[_Problem]:
    audit = settings.audit
    if audit.keep_size < 2 * audit.file_size:
        yield (
            ("audit.keep_size", "audit.file_size"),
            f"{audit.keep_size} MiB are kept, and no file is deleted before it is full, at {audit.file_size} MiB",
            f"keep at least {2 * audit.file_size}, or use smaller files",
        )


def _where(settings: Settings, *keys: str) -> str:
    """The keys, with the origin of those that are set."""
    given = (f"{key} ({origin})" for key in keys if (origin := settings.origin(key)).kind != "default")
    return ", ".join(given) or ", ".join(keys)
