"""Why a lease was lost: the facts known at that moment, which are part of the record, and sentences about them.

Promises: facts are numbers and short texts, never a token. `cause` claims nothing that the facts do not show. Does not
promise the root cause: a store that did not answer may have been starved itself.

Clocks: ages are on the holder's own host. `suspended_ns` is by how much the boot-time clock outran the monotonic one
since the last renewal, `stepped_ns` by how much the wall clock outran both: what a suspended host and a clock that was
set show, and nothing else does. `starved_ns` is by how much a sleeping thread woke too late, `collection_ns` the
longest garbage collection, `loop_lag_ns` how long the event loop took to answer, each since the last good renewal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.core.lease.states import LeaseState
from holdfast.core.lease.timing import Timing
from holdfast.types import MS, NS, Instant, LossReason, elapsed_ns

NOISE_NS = 100 * MS  # clocks are read one after the other, and threads wake a little late
ERROR_CHARS_MAX = 500


class RenewalRequest(NamedTuple):
    """One request that renewed leases together."""

    sent_mono_ns: int
    took_ns: int
    answered: bool


class StoreFailure(NamedTuple):
    """The latest request of this process that the store did not answer."""

    at_mono_ns: int
    error: str


def facts(
    state: LeaseState,
    timing: Timing,
    now: Instant,
    *,
    tail_ns: int = 0,
    renewals: Sequence[RenewalRequest] = (),
    failure: StoreFailure | None = None,
    breaker_open: bool = False,
    keeper_lag_ns: int = 0,
    starved_ns: int = 0,
    collection_ns: int = 0,
    loop_lag_ns: int | None = None,
) -> dict[str, Any]:
    """The facts known at `now` about a lease that has just been lost."""
    since = state.confirmed
    awake = now.mono - since.mono
    passed = max(awake, now.boot - since.boot)
    known: dict[str, Any] = {
        "held_ns": elapsed_ns(state.granted, now),
        "unrenewed_ns": elapsed_ns(since, now),
        "allowed_ns": timing.loss_age_ns(tail_ns),
        "ttl_ns": timing.ttl_ns,
        "suspended_ns": max(0, passed - awake),
        "stepped_ns": now.wall - since.wall - passed,
        "keeper_lag_ns": keeper_lag_ns,
        "starved_ns": starved_ns,
        "collection_ns": collection_ns,
        "slowest_renewal_ns": tail_ns,
        "failures": state.failures,
        "breaker_open": breaker_open,
    }
    if loop_lag_ns is not None:
        known["loop_lag_ns"] = loop_lag_ns
    if timing.auto_renew:
        known["renew_every_ns"] = timing.renew_every_ns
        known["renewals"] = [
            {"ago_ns": now.mono - each.sent_mono_ns, "took_ns": each.took_ns, "answered": each.answered}
            for each in renewals
        ]
    if failure is not None:
        known["store_error"] = failure.error[:ERROR_CHARS_MAX]
        known["store_error_ago_ns"] = now.mono - failure.at_mono_ns
    return known


def cause(reason: str | None, known: Mapping[str, Any]) -> str:
    """The likeliest cause, in one sentence."""
    plain = _CAUSES.get(reason or "")
    if plain is not None:
        return plain
    unrenewed = _number(known, "unrenewed_ns")
    if "renew_every_ns" not in known:
        return "its time was over: this lease is not renewed" if unrenewed else "nothing is recorded about this loss"
    if _number(known, "suspended_ns") > NOISE_NS:
        return f"the host was suspended for {_seconds(known['suspended_ns'])}"
    if _number(known, "stepped_ns") > max(NOISE_NS, unrenewed // 2):
        return f"the wall clock was set forward by {_seconds(known['stepped_ns'])}, so the age of the lease is in doubt"
    if _number(known, "starved_ns") > max(NOISE_NS, _number(known, "allowed_ns") // 2):
        return _pause(known)
    tried = _tried(known)
    if any(not each.get("answered") for each in tried):
        return "the store did not confirm a renewal in time"
    if not tried:
        paused = _number(known, "starved_ns") > NOISE_NS
        return _pause(known) if paused else "no renewal was sent: the process was paused or starved, or its keeper hung"
    return "renewals were sent, and the last one was not confirmed in time"


def sentences(reason: str | None, known: Mapping[str, Any]) -> list[str]:
    """The facts as sentences, most important first."""
    causes = [cause(reason, known)]
    if "unrenewed_ns" in known:
        causes.append(
            f"held for {_seconds(known.get('held_ns', 0))}; last confirmed {_seconds(known['unrenewed_ns'])} before, "
            f"of at most {_seconds(known.get('allowed_ns', 0))} (TTL {_seconds(known.get('ttl_ns', 0))})"
        )
    late = _number(known, "unrenewed_ns") - _number(known, "allowed_ns")
    if reason in {LossReason.EXPIRED, LossReason.UNCONFIRMED} and late > NOISE_NS:
        causes.append(f"noticed {_seconds(late)} after the deadline: the process did not run when it came")
    if "renewals" in known:
        causes.append(_attempts(known))
    causes += _kept_from_running(known)
    if _number(known, "keeper_lag_ns") > NOISE_NS:
        causes.append(f"the keeper was {_seconds(known['keeper_lag_ns'])} behind")
    if "store_error" in known and _number(known, "store_error_ago_ns") <= _number(known, "held_ns"):
        causes.append(
            f"the store's last error, {_seconds(known.get('store_error_ago_ns'))} before: {known['store_error']}"
        )
    if known.get("breaker_open"):
        causes.append("the store was taken to be down")
    stepped = _number(known, "stepped_ns")
    if stepped < -NOISE_NS:
        causes.append(f"the wall clock was set back by {_seconds(-stepped)}; times of this process are that far off")
    return causes


def _pause(known: Mapping[str, Any]) -> str:
    starved, collection = _number(known, "starved_ns"), _number(known, "collection_ns")
    if 2 * collection > starved:
        return f"the garbage collector stopped the process for {_seconds(collection)}"
    return (
        f"the process did not run for {_seconds(starved)}: it was stopped, had no processor, or some code kept the "
        "interpreter to itself"
    )


def _kept_from_running(known: Mapping[str, Any]) -> list[str]:
    causes = []
    if _number(known, "starved_ns") > NOISE_NS:
        causes.append(f"threads of the process woke up to {_seconds(known['starved_ns'])} late")
    if _number(known, "collection_ns") > NOISE_NS:
        causes.append(f"the longest garbage collection since took {_seconds(known['collection_ns'])}")
    if _number(known, "loop_lag_ns") > NOISE_NS:
        causes.append(f"the event loop was blocked for {_seconds(known['loop_lag_ns'])} or more")
    return causes


def _attempts(known: Mapping[str, Any]) -> str:
    tried = _tried(known)
    if not tried:
        return f"no renewal was sent since, though one was due every {_seconds(known.get('renew_every_ns'))}"
    shown = ", ".join(
        f"{_seconds(_number(each, 'ago_ns'))} before ({'answered' if each.get('answered') else 'no answer'} "
        f"after {_seconds(_number(each, 'took_ns'))})"
        for each in tried
    )
    return f"renewals since: {shown}"


def _tried(known: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The requests that were sent after the one that last confirmed this lease."""
    since = _number(known, "unrenewed_ns") - _number(known, "suspended_ns") - max(0, _number(known, "stepped_ns"))
    requests = known.get("renewals")
    found = [each for each in requests if isinstance(each, Mapping)] if isinstance(requests, list) else []
    return [each for each in found if _number(each, "ago_ns") < since]


def _number(known: Mapping[str, Any], name: str) -> int:
    """A fact may come from a file, which may be wrong."""
    value = known.get(name, 0)
    return value if isinstance(value, int) else 0


def _seconds(ns: object) -> str:
    value = ns if isinstance(ns, int) else 0
    if abs(value) < NS:
        return f"{value / MS:.3g} ms"
    return f"{value / NS:.3g} s" if abs(value) < 100 * NS else f"{value // NS} s"


_CAUSES: dict[str, str] = {
    LossReason.STOLEN: "the store said that the key is not ours: it was broken by force, had run out there, or the "
    "store forgot it",
    LossReason.MAX_HOLD: "it was held for as long as it may ever be (max_hold)",
    LossReason.STALLED: "the work stopped reporting progress (stall_after)",
    LossReason.REVOKED: "the Locks it came from was closed while it was held",
    LossReason.FORKED: "this was a child process; the lease belongs to the parent",
}
