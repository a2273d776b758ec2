"""Causes inside of the plane: workers, handlers, topics, tenants, jobs and people. Pure rules over facts."""

from __future__ import annotations

from collections import Counter
from typing import Final

from holdfast.ops.runbooks.evidence.locks import HeldFact, LocksFact, PolicyFact, Reach, StoreFact, number, span
from holdfast.ops.runbooks.evidence.plane import DebtFact, SnapshotFact, TenantDebt
from holdfast.ops.runbooks.evidence.work import FleetFact, WorkerFact, WorkFact
from holdfast.ops.runbooks.model import Case, Conclusion, FindingRule, FindingSeverity, NextStep
from holdfast.plane.jobs.rules import JobCode
from holdfast.plane.locks.registry import DEAD_LETTER_CLEANUP, FAMILIES, SCHEDULES, Scope
from holdfast.plane.schedules.rules import GRACE_NS
from holdfast.plane.service.overview import DEADLY, HUNG_NS, HUNG_TIMES, OpenLetter, PlaneOverview, RunningAttempt
from holdfast.types import NS

BEATS: Final = 3
"""Heartbeats that a worker may miss: one is late now and then."""
AHEAD_S: Final = 5.0
FLOOD: Final = 100
SHARE: Final = 0.5
FAILING: Final = 3
WAIT_S: Final = 10.0
APPROVAL_S: Final = 60.0
APPROVAL_LONG_S: Final = 3600.0
AGE_TTLS: Final = 2.0
PAUSED_S: Final = 86_400.0


def _overview(case: Case) -> PlaneOverview | None:
    found = case.fact("work", WorkFact)
    return None if found is None else found.overview


def _debt(case: Case) -> DebtFact | None:
    return case.fact("debt", DebtFact)


def _broken(case: Case) -> bool:
    """Whether a server is in a state that explains late workers, hung attempts and waiting jobs."""
    facts = [case.fact(step, StoreFact) for step in ("store", "database", "bus")]
    return any(each is not None and each.reach is not Reach.WELL for each in facts)


def _silent(case: Case) -> list[WorkerFact]:
    found = case.fact("workers", FleetFact)
    if found is None:
        return []
    late = [each for each in found.workers if not each.left and each.age > BEATS * found.beat]
    recent = [each for each in late if each.jobs or each.process == "stopped" or each.age < 3600]
    return sorted(recent, key=lambda each: (-each.jobs, each.age))


def _silent_workers(case: Case) -> Conclusion | None:
    fleet, silent = case.fact("workers", FleetFact), _silent(case)
    if fleet is None or not silent or _broken(case):
        return None
    worst = silent[0]
    alone = not fleet.pools.get(worst.pool)
    if not worst.jobs and worst.process != "stopped" and not alone:
        return None
    how = {
        "stopped": "its process is stopped (SIGSTOP, a debugger, or a frozen container)",
        "gone": "its process is gone: it crashed or was killed",
        "running": "its process runs, and is blocked or cut off from the database",
    }.get(worst.process, "it crashed, is paused, or is cut off from the database")
    others = f" {len(silent) - 1} more workers are silent." if len(silent) > 1 else ""
    left = "" if not alone else f" Pool {worst.pool} has no other worker."
    sentence = (
        f"Worker {worst.name} on {worst.host} (pid {worst.pid}) has sent no heartbeat for {span(worst.age)}, and sends "
        f"one every {span(fleet.beat)}: {how}. {number(worst.jobs, 'job runs', 'jobs run')} on it; other workers take "
        f"them over when its leases have expired.{left}{others}"
    )
    steps = [
        NextStep(f"ssh {worst.host} ps -o pid,stat,etime,args -p {worst.pid}", "whether it lives; stat T: stopped")
    ]
    if worst.process == "stopped":
        steps.append(NextStep(f"kill -CONT {worst.pid}", "it resumes; leases that others have are refused to it"))
    steps.append(NextStep("holdfast worker MODULE:APP", "a replacement, if it stays away"))
    return Conclusion(sentence, ("workers",), tuple(steps))


def _gone_workers(case: Case) -> Conclusion | None:
    silent = _silent(case)
    if not silent or _broken(case) or _silent_workers(case) is not None:
        return None
    named = ", ".join(f"{each.name} ({span(each.age)} ago)" for each in silent[:4])
    sentence = (
        f"{number(len(silent), 'worker is', 'workers are')} gone without a word: {named}. Others serve the pool, so "
        f"the fleet is only smaller. They crashed or were killed."
    )
    step = NextStep(f"ssh {silent[0].host} 'dmesg -T | grep -i -e oom -e killed'", "why they ended")
    return Conclusion(sentence, ("workers",), (step,))


def _ahead(case: Case) -> Conclusion | None:
    found = case.fact("workers", FleetFact)
    ahead = [] if found is None else [each for each in found.workers if each.age < -AHEAD_S and not each.left]
    if not ahead:
        return None
    worst = min(ahead, key=lambda each: each.age)
    gone = " Its process is gone." if worst.process == "gone" else ""
    sentence = (
        f"The clock of worker {worst.name} on {worst.host} is {span(-worst.age)} ahead: its heartbeat has a time in "
        f"the future. Ages and time limits that it computes are wrong by as much.{gone}"
    )
    steps = (
        NextStep(
            f"ssh {worst.host} timedatectl status", "whether its clock is synchronized; correct it and restart it"
        ),
    )
    return Conclusion(sentence, ("workers",), steps)


def _unserved(case: Case) -> Conclusion | None:
    found = _overview(case)
    if found is None or not found.unserved:
        return None
    topic, jobs = max(found.unserved.items(), key=lambda each: each[1])
    oldest = next((each for each in found.waiting if each.topic == topic), None)
    since = "" if oldest is None else f", the oldest for {span(oldest.age)}"
    last = found.view.last_served.get(topic)
    heard = (
        "no worker has ever announced it: it is misspelt, or its workers are not deployed"
        if last is None
        else f"its last worker was heard of {span((found.at_ns - last) / NS)} ago"
    )
    others = len(found.unserved) - 1
    more = f" {number(others, 'other topic has', 'other topics have')} no worker either." if others else ""
    live = sorted({name for pool in (found.view.pools or {}).values() for name in pool.topics or ()})
    known = f" Live workers serve: {', '.join(live[:8])}." if live else " No worker is alive at all."
    sentence = (
        f"No live worker serves topic {topic}: {number(jobs, 'job waits', 'jobs wait')}{since}, and {heard}. More "
        f"workers of other topics do not help.{more}{known}"
    )
    steps = [NextStep("holdfast worker MODULE:APP", f"an app with @app.job({topic!r}); its jobs then start")]
    if oldest is not None:
        steps.append(NextStep(f"holdfast jobs show {oldest.id}", "why this job waits"))
        steps.append(NextStep(f"holdfast jobs cancel {oldest.id}", "only if the topic is a mistake"))
    return Conclusion(sentence, ("work", "workers"), tuple(steps))


def _no_workers(case: Case) -> Conclusion | None:
    debt = _debt(case)
    empty = [each for each in debt.pools if each.waiting and not each.workers] if debt is not None else []
    if not empty or _unserved(case) is not None:
        return None
    sentence = f"Pool {empty[0].name} has {empty[0].waiting} queued jobs and no live worker."
    step = NextStep("holdfast worker MODULE:APP", f"a worker for pool {empty[0].name} (--pool)")
    return Conclusion(sentence, ("debt",), (step,))


def _stuck_pool(found: PlaneOverview) -> tuple[str, list[RunningAttempt]] | None:
    """A full pool in which no attempt has made progress for long, while jobs wait. No earlier attempt is needed."""
    for name in found.full:
        inside = [each for each in found.attempts if each.pool == name]
        if inside and all(each.silent >= HUNG_NS / NS for each in inside) and len(inside) >= found.running.get(name, 0):
            return name, inside
    return None


def _hung(case: Case) -> Conclusion | None:
    found = _overview(case)
    if found is None or _broken(case) or any(each.process == "stopped" for each in _silent(case)):
        return None
    hung, stuck = found.hung, _stuck_pool(found)
    if not hung and stuck is None:
        return None
    inside = list(hung) if hung else (stuck[1] if stuck is not None else [])
    worst = max(inside, key=lambda each: each.silent)
    usual = found.usual.get(worst.topic)
    normal = (
        f"attempts of this topic usually take {span(usual.p95)}"
        if usual is not None and usual.seen
        else "no earlier attempt of this topic has succeeded"
    )
    topics = ", ".join(f"{topic} {count}" for topic, count in Counter(each.topic for each in inside).most_common(3))
    waits = found.waiting[0].age if found.waiting else 0.0
    slots = ""
    for name in found.full:
        taken = sum(each.pool == name for each in inside)
        if taken:
            slots = f" They use {taken} of {found.running.get(name, 0)} busy slots of pool {name}."
            break
    behind = f" Jobs wait for {span(waits)} behind them: more workers do not cure it." if waits >= 1 and slots else ""
    limit = worst.timeout or case.settings.limits.running
    sentence = (
        f"{number(len(inside), 'attempt hangs', 'attempts hang')} ({topics}): {worst.id} has run on {worst.worker} for "
        f"{span(worst.age)} without progress for {span(worst.silent)}, and {normal}. Its worker is alive and renews "
        f"the lease, so the function itself waits for something.{slots}{behind} The time limit ends it after "
        f"{span(limit)}."
    )
    pid = _pid(case, worst.worker)
    steps = (
        NextStep(
            f"py-spy dump --pid {pid}" if pid else "py-spy dump --pid PID", f"where {worst.worker} waits, on its host"
        ),
        NextStep(f"holdfast jobs show {worst.id}", "its history and its last report"),
        NextStep(f"holdfast jobs cancel {worst.id}", "frees its slot"),
    )
    return Conclusion(sentence, ("work", "workers"), steps)


def hangs(case: Case) -> bool:
    """Whether attempts hang, so that a full pool is no lack of workers."""
    return _hung(case) is not None


def _pid(case: Case, worker: str) -> str:
    fleet = case.fact("workers", FleetFact)
    return next((str(each.pid) for each in fleet.workers if each.name == worker), "") if fleet is not None else ""


def _flood(case: Case) -> Conclusion | None:
    debt, found = _debt(case), _overview(case)
    if debt is None or found is None or debt.waiting < FLOOD:
        return None
    top = max(debt.tenants, key=lambda each: each.waiting)
    if top.waiting < max(FLOOD, SHARE * debt.waiting) or _hung(case) is not None or found.unserved:
        return None
    others = [each for each in debt.tenants if each is not top and each.waiting]
    behind = (
        f"{others[0].name} and {len(others) - 1} more tenants wait, one for {span(max(e.oldest for e in others))}"
        if len(others) > 1
        else f"{others[0].name} waits for {span(others[0].oldest)}"
        if others
        else "no other tenant waits"
    )
    sentence = (
        f"Tenant {top.name} floods the plane: {top.waiting} of {debt.waiting} queued jobs are its own, and "
        f"{top.running} of {debt.running} dispatched ones. Meanwhile {behind}. {_limit_text(top)}"
    )
    steps = (
        _limit(top.name),
        NextStep(f"holdfast jobs list --tenant {top.name} --state PENDING", "what it has submitted"),
        NextStep("holdfast jobs stats", "until the queue shrinks"),
    )
    return Conclusion(sentence, ("debt",), steps)


def _limit_text(tenant: TenantDebt) -> str:
    return (
        "It has no limit of its own."
        if tenant.slots is None
        else f"Its limit of {tenant.slots} running jobs protects the others."
    )


def _limit(tenant: str) -> NextStep:
    return NextStep(
        f"curl -X PUT $ADDRESS/api/v1/tenants/{tenant}/limits --json '{{\"slots\": 4}}'",
        f"how many jobs of {tenant} may run concurrently; takes effect immediately",
    )


def _tenant_limit(case: Case) -> Conclusion | None:
    debt = _debt(case)
    full = [each for each in debt.tenants if each.full and each.waiting and each.oldest >= WAIT_S] if debt else []
    if not full or _flood(case) is not None:
        return None
    worst = full[0]
    sentence = (
        f"Tenant {worst.name} waits for its own limit: {worst.waiting} queued jobs (the oldest for "
        f"{span(worst.oldest)}), and all of its {worst.slots} slots are in use. The plane works as configured."
    )
    return Conclusion(sentence, ("debt",), (_limit(worst.name),))


def _busy(case: Case) -> Conclusion | None:
    found, debt = _overview(case), _debt(case)
    if found is None or debt is None or not found.full or not found.waiting:
        return None
    explained = (_hung, _flood, _silent_workers)
    waiting = [each for each in found.waiting if each.pool in found.full and found.served(each.topic)]
    if not waiting or waiting[0].age < WAIT_S or _broken(case) or any(each(case) is not None for each in explained):
        return None
    pool = next(each for each in debt.pools if each.name == waiting[0].pool)
    sentence = (
        f"Pool {pool.name} is full of working attempts: {pool.running} jobs on {pool.workers} workers with "
        f"{pool.capacity} slots, and {pool.waiting} queued, the oldest for {span(waiting[0].age)}. Attempts make "
        f"progress, so more capacity helps."
    )
    step = NextStep("holdfast worker MODULE:APP --concurrency N", f"more slots for pool {pool.name}")
    return Conclusion(sentence, ("work", "debt"), (step,))


def _poison(case: Case) -> Conclusion | None:
    letters, found = _letters(case, lost=True), _overview(case)
    if found is not None and found.deadly:
        return _deadly(*found.deadly[0], len(found.deadly) - 1)
    if not letters:
        return None
    worst = letters[0]
    sentence = (
        f"Poison job {worst.job} of {worst.tenant} ({worst.topic}): workers that began it ended without a result, so "
        f"the plane gave it up {span(worst.age)} ago. {worst.reason[:200]}. It very likely kills its worker process."
    )
    others = f" {len(letters) - 1} more jobs ended in the same way." if len(letters) > 1 else ""
    steps = (
        NextStep(f"holdfast jobs show {worst.job}", "its attempts, and on which workers"),
        NextStep("dmesg -T | grep -i -e oom -e segfault", "on the host of these workers: how they ended"),
        NextStep(f"holdfast jobs retry {worst.id}", "only after the cause is fixed"),
    )
    return Conclusion(sentence + others, ("work",), steps)


def _deadly(worst: RunningAttempt, ended: int, others: int) -> Conclusion:
    more = f" {number(others, 'other job does', 'other jobs do')} the same." if others else ""
    sentence = (
        f"Poison job {worst.id} of {worst.tenant} ({worst.topic}): {ended} workers ended without a result while they "
        f"ran it, the last one {worst.worker}. It very likely kills its worker process, and each worker that takes it "
        f"over is the next: more workers do not help.{more}"
    )
    steps = (
        NextStep(f"holdfast jobs cancel {worst.id}", "it takes no further worker"),
        NextStep(f"holdfast jobs show {worst.id}", "its attempts, and on which workers"),
        NextStep("dmesg -T | grep -i -e oom -e segfault", "on the host of these workers: how they ended"),
    )
    return Conclusion(sentence, ("work",), steps)


def _letters(case: Case, *, lost: bool) -> list[OpenLetter]:
    found = _overview(case)
    return [] if found is None else [each for each in found.letters if (each.code == JobCode.LOST) is lost]


def _dying(case: Case) -> Conclusion | None:
    letters = _letters(case, lost=False)
    if not letters:
        return None
    (topic, code), count = Counter((each.topic, each.code) for each in letters).most_common(1)[0]
    worst = next(each for each in letters if (each.topic, each.code) == (topic, code))
    rest = len(letters) - count
    more = f" {number(rest, 'dead letter', 'dead letters')} of other topics." if rest else ""
    sentence = (
        f"{number(count, 'job', 'jobs')} of topic {topic} died in the window of this report ({code}), the last "
        f"{span(worst.age)} ago: {worst.reason[:300]}.{more}"
    )
    steps = (
        NextStep(f"holdfast jobs show {worst.job}", "its attempts and errors"),
        NextStep("holdfast jobs dead-letters", "all dead letters, the newest first"),
        NextStep(f"holdfast jobs retry {worst.id}", "after the cause is fixed"),
    )
    return Conclusion(sentence, ("work",), steps)


def _many_dying(case: Case) -> Conclusion | None:
    return _dying(case) if len(_letters(case, lost=False)) >= FAILING else None


def _few_dying(case: Case) -> Conclusion | None:
    return _dying(case) if 0 < len(_letters(case, lost=False)) < FAILING else None


def _approvals(case: Case, *, long: bool) -> Conclusion | None:
    found = _overview(case)
    old = [] if found is None else [each for each in found.approvals if each.age >= APPROVAL_S]
    if found is None or not old or (old[0].age >= APPROVAL_LONG_S) is not long:
        return None
    first = old[0]
    run = f" of run {first.run}" if first.run else ""
    soon = min((each.expires for each in old if each.expires is not None), default=None)
    lapses = "" if soon is None else f" The next one lapses in {span(max(0.0, soon))}."
    count = number(len(found.approvals), "approval waits", "approvals wait")
    sentence = (
        f"{count} for a person; the oldest, {first.job}{run} of {first.tenant}, for {span(first.age)}. "
        f"{first.requested_by} asked for it and may not decide it.{lapses} The plane works; work stands still until a "
        f"second person decides."
    )
    steps = (
        NextStep("holdfast approvals list", "what waits, and who asked"),
        NextStep(f"holdfast approvals show {first.job}", "what is to be approved"),
        NextStep(f"holdfast approvals approve {first.job}", f"not as {first.requested_by}; or reject it"),
    )
    return Conclusion(sentence, ("work",), steps)


def _late_schedules(case: Case) -> Conclusion | None:
    found = _overview(case)
    late = [] if found is None else [each for each in found.late_schedules if each.age > GRACE_NS / NS]
    if not late or _broken(case):
        return None
    count = number(len(late), "schedule is late", "schedules are late")
    sentence = (
        f"{count}: {late[0].name} of {late[0].tenant} should have submitted its job {span(late[0].age)} ago. No "
        f"process leads the schedules loop, or its ticks fail."
    )
    steps = (
        NextStep(f"holdfast inspect {case.key(SCHEDULES)}", "which process leads the loop; its log has failed ticks"),
        NextStep("holdfast up --only schedules", "a process with the loop, if none runs"),
        NextStep(f"holdfast schedules show {late[0].name} --tenant {late[0].tenant}", "its due times and policy"),
    )
    return Conclusion(sentence, ("work", "loops"), steps)


def _paused_schedules(case: Case) -> Conclusion | None:
    found = _overview(case)
    paused = [] if found is None else [each for each in found.paused_schedules if each.age >= PAUSED_S]
    if not paused:
        return None
    first = paused[0]
    why = f" ({first.reason})" if first.reason else ""
    count = number(len(paused), "schedule has", "schedules have")
    sentence = (
        f"{count} been paused for more than {span(PAUSED_S)}: {first.by or 'an operator'} paused {first.name} of "
        f"{first.tenant} {span(first.age)} ago{why}. Nothing resumes it automatically."
    )
    step = NextStep(f"holdfast schedules resume {first.name} --tenant {first.tenant}", "if the reason is gone")
    return Conclusion(sentence, ("work",), (step,))


def _old_holder(case: Case) -> Conclusion | None:
    found = case.fact("held", HeldFact)
    if found is None:
        return None
    for each in found.families:
        family = FAMILIES.get(each.family)
        if family is None or family.scope is Scope.LOOP or each.family == "worker.job" or not each.waiters:
            continue
        oldest = each.oldest
        if (oldest.age or 0.0) >= AGE_TTLS * (oldest.ttl or family.ttl):
            sentence = (
                f"{oldest.owner} has held {oldest.key} for {span(oldest.age)} while {each.waiters} wait: a transition "
                f"takes milliseconds, so the holder is stuck and still renews."
            )
            steps = (
                NextStep(f"holdfast inspect {oldest.key}", "whether it is still the same holder and fence"),
                NextStep(f"holdfast release {oldest.key} --reason 'stuck'", "fences its holder out"),
            )
            return Conclusion(sentence, ("held",), steps)
    return None


def _free_loops(case: Case) -> tuple[list[str], bool]:
    """The keys of loops without a leader, and whether none has one. Cleanup may be late by hours without harm."""
    found = case.fact("loops", LocksFact)
    if found is None or _broken(case):
        return [], False
    minor = case.key(DEAD_LETTER_CLEANUP)
    free = [each.key for each in found.locks if not each.held and each.key != minor]
    return free, not any(each.held for each in found.locks)


def _no_leaders(case: Case) -> Conclusion | None:
    free, none = _free_loops(case)
    if not free or not none:
        return None
    sentence = (
        "No process leads any loop: overdue jobs are not ended, forgotten ones do not go on, and delays do not end. "
        "The processes with schedulers and loops are down, or have just lost all their leases."
    )
    steps = (
        NextStep("holdfast up", "a process with all loops, if none runs"),
        NextStep("holdfast locks", "again after a minute: another process may have taken them over"),
    )
    return Conclusion(sentence, ("loops",), steps)


def _leaderless(case: Case) -> Conclusion | None:
    free, none = _free_loops(case)
    if not free or none or _just_started(case):
        return None
    sentence = (
        f"No process leads {number(len(free), 'loop', 'loops')} at this moment ({', '.join(free)}): its last leader "
        f"has died and another takes over, or no process runs it."
    )
    steps = (
        NextStep(f"holdfast inspect {free[0]}", "again after a minute: it should be held"),
        NextStep("holdfast up", "a process with all loops, if it stays free"),
    )
    return Conclusion(sentence, ("loops",), steps, "sure for this moment; run it again")


def _just_started(case: Case) -> bool:
    """Whether all leases of loops are newer than two intervals: loops begin at random parts of theirs."""
    found = case.fact("loops", LocksFact)
    ages = [each.age for each in found.locks if each.held] if found is not None else []
    recent = 2 * max(case.settings.reconciler.interval, case.settings.replayer.interval)
    return all(age is not None and age < recent for age in ages)


def _stale_snapshot(case: Case) -> Conclusion | None:
    found, loops = case.fact("snapshot", SnapshotFact), case.fact("loops", LocksFact)
    interval = case.settings.snapshot.interval
    if found is None or found.age is None or found.age < 6 * interval or _broken(case) or not found.alive:
        return None
    held = next((each for each in loops.locks if "snapshot" in each.key and each.held), None) if loops else None
    who = (
        "no process leads the loop" if held is None else f"{held.owner} leads the loop and writes nothing: it is stuck"
    )
    sentence = f"The worker snapshot is {span(found.age)} old, where one is written every {span(interval)}: {who}."
    return Conclusion(
        sentence, ("snapshot", "loops"), (NextStep("holdfast runbook snapshot-leader", "who holds it, and what to do"),)
    )


def _stale(case: Case) -> Conclusion | None:
    debt = _debt(case)
    overdue = {state: count for state, count in debt.overdue.items() if count} if debt is not None else {}
    if not overdue or _broken(case):
        return None
    named = ", ".join(f"{count} {state}" for state, count in overdue.items())
    sentence = f"Jobs are past the time limits of their states ({named}): the reconciler does not end them in time."
    return Conclusion(
        sentence, ("debt", "loops"), (NextStep("holdfast runbook lock-debt", "which loop is late, and why"),)
    )


def _fallbacks(case: Case) -> Conclusion | None:
    policy = case.fact("policy", PolicyFact)
    if policy is None or not (policy.escalate or policy.rate > policy.limit):
        return None
    sentence = (
        f"Locks are granted without the store: {policy.rate:.3g} fallbacks per second over {span(policy.window_s)}, of "
        f"{policy.limit:g} at most. Replicas do not exclude each other meanwhile."
    )
    step = NextStep("holdfast runbook store-outage", "which processes fall back, and what to switch")
    return Conclusion(sentence, ("policy", "store"), (step,))


def _waits(case: Case) -> Conclusion | None:
    """Jobs wait, and no rule above names a cause."""
    found = _overview(case)
    if found is None or not found.waiting or _broken(case):
        return None
    explained = (_unserved, _hung, _flood, _busy, _no_workers, _silent_workers, _no_leaders, _tenant_limit)
    oldest = found.waiting[0]
    if oldest.age < 3 * WAIT_S or any(each(case) is not None for each in explained):
        return None
    sentence = (
        f"Job {oldest.id} of {oldest.tenant} ({oldest.topic}) has waited in pool {oldest.pool} for {span(oldest.age)}, "
        f"although workers serve it and have free slots: no scheduler dispatches, or its lock is busy."
    )
    steps = (
        NextStep(f"holdfast jobs show {oldest.id}", "why it waits"),
        NextStep("holdfast up --only scheduler", "a scheduler, if none runs"),
        NextStep("holdfast runbook lock-debt", "locks, loops and limits in detail"),
    )
    return Conclusion(sentence, ("work",), steps)


def rules() -> tuple[FindingRule, ...]:
    """The rules, the causes of other findings first."""
    act, watch = FindingSeverity.ACT, FindingSeverity.WATCH
    return (
        FindingRule("worker clock", act, f"a heartbeat has a time more than {AHEAD_S:g} s in the future", _ahead),
        FindingRule(
            "poison job",
            act,
            f"{DEADLY} workers ended while they ran the same job, or a job was given up because its workers ended",
            _poison,
        ),
        FindingRule(
            "worker silent",
            act,
            f"a worker has missed {BEATS} heartbeats, and has jobs, is stopped, or was alone in its pool",
            _silent_workers,
        ),
        FindingRule("no leaders", act, "no process holds the lock of any loop", _no_leaders),
        FindingRule("topic without workers", act, "jobs wait for a topic that no live worker serves", _unserved),
        FindingRule("pool without workers", act, "jobs wait in a pool without a live worker", _no_workers),
        FindingRule(
            "handler hangs",
            act,
            f"attempts make no progress for {HUNG_NS / NS:g} s, and for {HUNG_TIMES:g} times as long as earlier ones "
            f"took; or all attempts of a full pool make none for {HUNG_NS / NS:g} s",
            _hung,
        ),
        FindingRule("tenant flood", act, f"one tenant has {SHARE:.0%} of at least {FLOOD} queued jobs", _flood),
        FindingRule(
            "holder stuck", act, f"a lock of one item is held for {AGE_TTLS:g} TTLs while others wait", _old_holder
        ),
        FindingRule(
            "snapshot stale", act, "the worker snapshot is six intervals old while workers live", _stale_snapshot
        ),
        FindingRule("jobs die", act, f"{FAILING} or more recent dead letters", _many_dying),
        FindingRule("jobs wait", act, f"a job waits for {3 * WAIT_S:g} s and no other rule explains it", _waits),
        FindingRule(
            "schedules late", act, f"a schedule is {GRACE_NS / NS:g} s late, and no server explains it", _late_schedules
        ),
        FindingRule("stale jobs", act, "jobs are past the time limits of their states", _stale),
        FindingRule("fallbacks", act, "locks fall back more often than `escalation.rate`", _fallbacks),
        FindingRule(
            "approvals wait long",
            act,
            f"an approval waits for {APPROVAL_LONG_S / 60:g} min",
            lambda case: _approvals(case, long=True),
        ),
        FindingRule("pool is busy", watch, f"a full pool makes progress, and a job waits for {WAIT_S:g} s", _busy),
        FindingRule(
            "tenant at its limit",
            watch,
            f"a tenant uses all its slots, and a job of it waits {WAIT_S:g} s",
            _tenant_limit,
        ),
        FindingRule("workers gone", watch, "a worker is silent, and others serve its pool", _gone_workers),
        FindingRule("a job died", watch, f"fewer than {FAILING} recent dead letters", _few_dying),
        FindingRule(
            "loop without leader",
            watch,
            "no process holds the lock of a loop other than cleanup, and the plane did not just start",
            _leaderless,
        ),
        FindingRule("schedules paused", watch, f"a schedule is paused for {PAUSED_S / 3600:g} h", _paused_schedules),
        FindingRule(
            "approvals wait",
            watch,
            f"an approval waits for {APPROVAL_S:g} s",
            lambda case: _approvals(case, long=False),
        ),
    )
