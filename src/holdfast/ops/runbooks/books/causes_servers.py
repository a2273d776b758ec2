"""Causes outside of the plane: its servers, files, disks and clocks. Pure rules over the facts of `books.why`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

from holdfast.core.lease.error_policy import OnError
from holdfast.ops.runbooks.collectors.servers import address_of
from holdfast.ops.runbooks.evidence.locks import SLOW_S, PolicyFact, Reach, StoreFact, span
from holdfast.ops.runbooks.evidence.servers import ClockFact, RoomFact, size
from holdfast.ops.runbooks.evidence.work import MissingLeases
from holdfast.ops.runbooks.model import Case, Conclusion, FindingRule, FindingSeverity, NextStep
from holdfast.stores.registry import redacted

LOW_SHARE: Final = 0.05
LOW_BYTES: Final = 1_000_000_000
FEW_CONNECTIONS: Final = 0.9
LONG_TRANSACTION_S: Final = 60
CLOCK_S: Final = 2.0
AT_ONCE: Final = 3
"""Leases that vanish within ten seconds without force: fewer may be one worker that was too late."""

_NAMES: Final = {"store": "The lease store", "database": "The database", "bus": "The message bus"}
_EFFECTS: Final = {
    "store": "No process can acquire or renew a lease: fail-closed work waits, and running work loses its leases.",
    "database": "Nothing can be submitted, dispatched or finished until it answers.",
    "bus": "No process receives a message: jobs stay where they are until it answers.",
}


def url_of(case: Case, step: str) -> str:
    """The URL of a server."""
    settings = case.settings
    return {"store": settings.lease_url, "database": settings.database_url, "bus": settings.bus or ""}[step]


def by_hand(case: Case, step: str, *words: str) -> str:
    """A command of the server's own client, with its address."""
    url = url_of(case, step)
    found = address_of(url)
    if found is None:
        path = redacted(url).partition("?")[0].partition("://")[2][1:]
        return f"ls -l {shlex.quote(path)}*; fuser -v {shlex.quote(path)}"
    protocol, host, port = found
    if step == "bus":
        return f"nats --server nats://{host}:{port} server ping --count 3"
    if protocol == "postgres":
        place = redacted(url).partition("?")[0].replace(":***@", "@")
        return f"psql {shlex.quote(place)} -c {shlex.quote(' '.join(words) or 'SELECT now()')}"
    tls = " --tls" if protocol == "tls" else ""
    return f"redis-cli -h {host} -p {port}{tls} {' '.join(words) or 'PING'}"


def _where(case: Case, step: str) -> str:
    found = address_of(url_of(case, step))
    return f" at {found[1]}:{found[2]}" if found is not None else ""


def _down(step: str) -> Callable[[Case], Conclusion | None]:
    def judge(case: Case) -> Conclusion | None:
        found = case.fact(step, StoreFact)
        if found is None or found.reach not in {Reach.REFUSED, Reach.UNREACHABLE, Reach.HANGS, Reach.FAILS}:
            return None
        if not found.down and found.reach is Reach.FAILS:
            return None
        wire = found.wire
        name = f"{_NAMES[step]} ({found.engine}){_where(case, step)}"
        how = {
            Reach.REFUSED: "is down: the connection is refused, so no process listens there",
            Reach.UNREACHABLE: f"cannot be reached: {wire.problem if wire is not None else found.error}",
            Reach.HANGS: f"hangs: it accepts connections and sends no answer within "
            f"{span(wire.limit if wire is not None else None)}. It is stopped, overloaded, or cut off behind a proxy",
            Reach.FAILS: f"refuses its clients: {found.error}",
        }[found.reach]
        steps = [NextStep(by_hand(case, step), "whether it answers; start or repair it")]
        if step == "store":
            steps += _policy_steps(case)
        steps.append(NextStep("holdfast runbook", "again, when it is back: this finding must be gone"))
        return Conclusion(f"{name} {how}. {_EFFECTS[step]}", (step,), tuple(steps))

    return judge


def _policy_steps(case: Case) -> list[NextStep]:
    policy = case.fact("policy", PolicyFact)
    found = [NextStep("holdfast policy show", "which risk classes wait, and which run without locks")]
    for risk in () if policy is None else policy.named(OnError.FAIL_OPEN):
        command = f"holdfast policy set {risk} fail_closed --reason 'the lease store is down'"
        found.append(NextStep(command, f"only if work of class {risk} must not run twice"))
    return found


def _slow(step: str) -> Callable[[Case], Conclusion | None]:
    def judge(case: Case) -> Conclusion | None:
        found = case.fact(step, StoreFact)
        if found is None or found.reach is not Reach.SLOW:
            return None
        wire = found.wire
        connected = "" if wire is None or wire.connected is None else f" A connection takes {span(wire.connected)}."
        failed = f" The driver gave up: {found.error}." if found.error else ""
        sentence = (
            f"{_NAMES[step]} ({found.engine}){_where(case, step)} is slow, not down: an answer takes "
            f"{span(found.took)}, where {span(SLOW_S)} is slow already.{connected}{failed} "
            f"Requests of processes run into their time limits, so they report it as down."
        )
        words = {"store": ("--latency-history -i 1",), "database": ("SELECT now()",), "bus": ()}[step]
        steps = [NextStep(by_hand(case, step, *words), "measure it; check its CPU, its disk and the network to it")]
        if found.engine == "redis":
            steps.append(NextStep(by_hand(case, step, "SLOWLOG", "GET", "10"), "the commands that block it"))
        return Conclusion(sentence, (step,), tuple(steps))

    return judge


def _locked(case: Case) -> Conclusion | None:
    for step in ("database", "store"):
        found = case.fact(step, StoreFact)
        if found is None or found.engine != "sqlite" or "write lock" not in found.error:
            continue
        path = redacted(url_of(case, step)).partition("?")[0].partition("://")[2][1:]
        sentence = (
            f"{_NAMES[step]} {path} is locked: {found.error}. Every process of the plane waits to write, and "
            f"reports timeouts of the database and of leases."
        )
        steps = (
            NextStep(f"fuser -v {shlex.quote(path)}", "which processes have the file open; end the one that writes"),
        )
        return Conclusion(sentence, (step,), steps)
    return None


def _unwritable(case: Case) -> Conclusion | None:
    found = case.fact("database", StoreFact)
    if found is None or found.down:
        return None
    if found.about is not None and found.about.get("role") == "standby":
        sentence = (
            f"The database{_where(case, 'database')} is a standby and takes no writes: a failover is under way, or "
            f"the settings name the wrong server."
        )
        step = NextStep(
            by_hand(case, "database", "SELECT pg_is_in_recovery()"), "until it prints f; or name the primary"
        )
        return Conclusion(sentence, ("database",), (step,))
    if found.engine == "sqlite" and ("cannot be written" in found.error or "cannot be opened" in found.error):
        step = NextStep(by_hand(case, "database"), "its owner, its mode, and the mode of its directory")
        return Conclusion(f"The database takes no writes: {found.error}.", ("database",), (step,))
    return None


def _full(case: Case) -> Conclusion | None:
    found = case.fact("room", RoomFact)
    full = [] if found is None else [each for each in found.places if each.free is not None and each.free < found.kept]
    if found is None or not full:
        return None
    worst = full[0]
    sentence = (
        f"The disk is full: {worst.path}, with the {' and the '.join(each.what for each in full)}, has "
        f"{size(worst.free or 0)} free, and processes need {size(found.kept)} to finish what they have begun. They "
        f"are not ready, and writes fail."
    )
    path = shlex.quote(worst.path)
    steps = (
        NextStep(f"df -h {path}", "the free space, before and after"),
        NextStep(f"du -xh {path} | sort -h | tail -20", "what uses it; delete or move files that are not Holdfast's"),
    )
    return Conclusion(sentence, ("room",), steps)


def _low(case: Case) -> Conclusion | None:
    found = case.fact("room", RoomFact)
    if found is None or _full(case) is not None:
        return None
    low = [
        each
        for each in found.places
        if each.free is not None and each.total and each.free < min(LOW_BYTES, LOW_SHARE * each.total)
    ]
    if not low:
        return None
    sentence = f"The disk is nearly full: {low[0].line()}. With less than {size(found.kept)}, processes are not ready."
    return Conclusion(sentence, ("room",), (NextStep(f"df -h {shlex.quote(low[0].path)}", "free space there in time"),))


def _forgot(case: Case) -> Conclusion | None:
    found, store = case.fact("leases", MissingLeases), case.fact("store", StoreFact)
    if found is None or store is None or store.down:
        return None
    unforced = found.lost_at_once - found.forced
    gone = len(found.missing)
    if unforced < AT_ONCE and not (gone >= AT_ONCE or (gone and gone == found.seen and _wiped(store))):
        return None
    told = []
    if gone:
        told.append(f"{gone} of {found.seen} running jobs have no lease in the store")
    if unforced >= AT_ONCE:
        told.append(f"{found.lost_at_once} leases of {found.processes} processes vanished within 10 s")
    forced = f" Operators broke {found.forced}." if found.forced else " No operator broke them."
    sentence = (
        f"The lease store forgot its leases: {'; '.join(told)}.{forced}{_wiped(store)} Another process may have "
        f"acquired the same locks meanwhile; writes of the former holders are refused where a guard checks their fence."
    )
    steps = [NextStep("holdfast audit", "whether an operator broke them after all")]
    if store.engine == "redis":
        steps.insert(0, NextStep(by_hand(case, "store", "INFO", "server"), "uptime_in_seconds: whether it restarted"))
        steps.insert(
            1,
            NextStep(
                by_hand(case, "store", "INFO", "commandstats"), "cmdstat_flushall, cmdstat_flushdb: who flushed it"
            ),
        )
    steps.append(NextStep("holdfast policy show", "whether work is done twice (duplicates)"))
    steps.append(NextStep("holdfast runbook not-owned", "which leases were lost, and why"))
    return Conclusion(sentence, ("leases", "store"), tuple(steps))


def _wiped(store: StoreFact) -> str:
    """What the server reports about a loss of its data; "" if nothing."""
    about = store.about or {}
    told = []
    for name, command in (("cmdstat_flushall", "FLUSHALL"), ("cmdstat_flushdb", "FLUSHDB")):
        if name in about:
            calls = about[name].partition("calls=")[2].partition(",")[0]
            told.append(f"it executed {command} {calls} times since its start")
    uptime = about.get("uptime_in_seconds", "")
    if uptime.isdecimal() and int(uptime) < 900:
        kept = (
            "and has persistence" if about.get("aof_enabled") == "1" else "and does not log every write (appendonly no)"
        )
        told.append(f"it started {span(float(uptime))} ago {kept}")
    return f" The server reports: {'; '.join(told)}." if told else ""


def _persistence(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    about = (found.about or {}) if found is not None else {}
    broken = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if about.get(name, "ok") != "ok"]
    if not broken:
        return None
    sentence = (
        f"The lease store cannot save its data ({', '.join(broken)}: err): its disk is full or not writable. Redis "
        f"refuses writes then, and a restart loses every lease."
    )
    step = NextStep(by_hand(case, "store", "INFO", "persistence"), "free space on the host of the server")
    return Conclusion(sentence, ("store",), (step,))


def _memory(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    about = (found.about or {}) if found is not None else {}
    used, most = about.get("used_memory", "0"), about.get("maxmemory", "0")
    if not used.isdecimal() or not most.isdecimal() or int(most) == 0 or int(used) < int(most):
        return None
    if about.get("maxmemory_policy", "noeviction") != "noeviction":
        return None
    sentence = (
        f"The memory of the lease store{_where(case, 'store')} is full: it uses {size(int(used))} of "
        f"{size(int(most))} (maxmemory) and refuses writes. It answers, but no process can acquire a lease."
    )
    steps = (
        NextStep(by_hand(case, "store", "--bigkeys", "-i", "0.01"), "which program's keys fill it"),
        NextStep(by_hand(case, "store", "CONFIG SET maxmemory 1gb"), "room until then; also in its configuration"),
    )
    return Conclusion(sentence, ("store",), steps)


def _readonly_store(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    about = (found.about or {}) if found is not None else {}
    if about.get("role", "master") == "master" and about.get("loading", "0") == "0":
        return None
    sentence = (
        f"The lease store{_where(case, 'store')} is {about.get('role', 'loading')} (link to its primary: "
        f"{about.get('master_link_status', '?')}, loading: {about.get('loading', '?')}): leases need a writable server."
    )
    step = NextStep(
        by_hand(case, "store", "INFO", "replication"), "which server is the primary; name it in the settings"
    )
    return Conclusion(sentence, ("store",), (step,))


def _evicts(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    about = (found.about or {}) if found is not None else {}
    if about.get("maxmemory_policy", "noeviction") == "noeviction":
        return None
    sentence = (
        f"The lease store may evict keys when its memory is full (maxmemory_policy {about['maxmemory_policy']}, "
        f"{about.get('evicted_keys', '?')} so far): a lock can vanish while it is held."
    )
    step = NextStep(by_hand(case, "store", "CONFIG SET maxmemory-policy noeviction"), "locks must not be evicted")
    return Conclusion(sentence, ("store",), (step,))


def _connections(case: Case) -> Conclusion | None:
    found = case.fact("database", StoreFact)
    if found is None:
        return None
    said = found.error.lower()
    if "too many clients" in said or "remaining connection slots" in said or "too many connections" in said:
        sentence = f"The database has no free connection: {found.error}. The server answers, and refuses new clients."
    else:
        used, _, most = (found.about or {}).get("connections", "").partition(" of ")
        if not used.isdecimal() or not most.isdecimal() or int(used) < FEW_CONNECTIONS * int(most):
            return None
        sentence = f"The database has nearly no free connection: {used} of {most} are in use."
    query = "SELECT application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2 ORDER BY 3 DESC"
    steps = (NextStep(by_hand(case, "database", query), "which program holds them; end it, or raise max_connections"),)
    return Conclusion(sentence, ("database",), steps)


def _blocker(case: Case) -> Conclusion | None:
    found = case.fact("database", StoreFact)
    about = (found.about or {}) if found is not None else {}
    seconds = about.get("oldest_transaction", "").partition(" s")[0]
    blocks = about.get("blocks", "0")
    if not seconds.isdecimal() or (blocks == "0" and int(seconds) < LONG_TRANSACTION_S):
        return None
    if blocks != "0" and int(seconds) < 2:
        return None
    sentence = (
        f"A transaction of the database is open for {seconds} s ({about['oldest_transaction']}) and blocks "
        f"{blocks} others."
    )
    pid = about.get("pid", "0")
    steps = (
        NextStep(by_hand(case, "database", "TABLE pg_stat_activity"), f"what pid {pid} does"),
        NextStep(
            by_hand(case, "database", "SELECT", f"pg_terminate_backend({pid})"), "ends it; its changes are rolled back"
        ),
    )
    return Conclusion(sentence, ("database",), steps)


def _clock(case: Case) -> Conclusion | None:
    found = case.fact("clock", ClockFact)
    if found is None or abs(found.ahead) < CLOCK_S + found.within:
        return None
    where = "ahead of" if found.ahead > 0 else "behind"
    sentence = (
        f"The clock of this host is {span(abs(found.ahead))} {where} that of the database: the ages in this report are "
        f"wrong by as much. If processes of the plane run here, correct it."
    )
    return Conclusion(sentence, ("clock",), (NextStep("timedatectl status", "whether the clock is synchronized"),))


def rules() -> tuple[FindingRule, ...]:
    """The rules, the causes of other findings first."""
    act, watch = FindingSeverity.ACT, FindingSeverity.WATCH
    unanswered = "it accepts no connection, answers no request, or answers only errors"
    slow = f"it answers, and an answer takes {SLOW_S:g} s or more"
    return (
        FindingRule("disk full", act, "a disk has less free space than processes keep for begun work", _full),
        FindingRule(
            "no connections", act, f"{FEW_CONNECTIONS:.0%} of the connections of Postgres are used", _connections
        ),
        FindingRule("database down", act, unanswered, _down("database")),
        FindingRule("database locked", act, "one process holds the write lock of the SQLite file", _locked),
        FindingRule("database read-only", act, "it is a standby, or its file cannot be written", _unwritable),
        FindingRule("store down", act, unanswered, _down("store")),
        FindingRule("bus down", act, unanswered, _down("bus")),
        FindingRule("database slow", act, slow, _slow("database")),
        FindingRule("store slow", act, slow, _slow("store")),
        FindingRule("bus slow", act, slow, _slow("bus")),
        FindingRule(
            "transaction blocks",
            act,
            f"a transaction blocks others for 2 s, or is open for {LONG_TRANSACTION_S} s",
            _blocker,
        ),
        FindingRule("store cannot save", act, "Redis reports that its last save failed", _persistence),
        FindingRule("store memory full", act, "Redis uses its maxmemory, and may evict nothing", _memory),
        FindingRule("store is no primary", act, "Redis is a replica, or loads its data", _readonly_store),
        FindingRule(
            "leases forgotten",
            act,
            f"{AT_ONCE} leases vanish within ten seconds without force, or {AT_ONCE} running jobs have no lease",
            _forgot,
        ),
        FindingRule("store evicts", act, "Redis may evict keys", _evicts),
        FindingRule("clock of this host", watch, f"it is {CLOCK_S:g} s or more away from the database's", _clock),
        FindingRule(
            "disk low", watch, f"a disk has less than {LOW_SHARE:.0%}, and less than {size(LOW_BYTES)}, free", _low
        ),
    )
