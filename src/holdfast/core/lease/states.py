"""The life of a lease, as one table.

Rule 1: everything that can change the state of a lease is in this file.
Rule 2: nothing in this file knows what time it is, who asks, or how the store is reached.

    held ──unknown──▶ doubtful ──renewed──▶ held
    held, doubtful ──refused, expired, max_hold, stalled, revoked, forked──▶ lost
    held, doubtful ──released──▶ released
    lost and released are final: a lost lease is never released (the key may have another holder by now), and a
    released one cannot be lost.

Renewal has three outcomes. *Renewed* resets everything. *Refused* (the store: not the holder) is a loss immediately,
never one failure of several. *Unknown* (no answer, or an error) makes the lease doubtful; the attempts of one period
count as one failure, and the lease is abandoned at the failure budget or at the loss age, whichever comes first.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.lease.timing import Timing
from holdfast.core.str_enum import TextEnum
from holdfast.types import Instant, LossReason, elapsed_ns


class LeasePhase(TextEnum):
    """Where a lease is in its life."""

    HELD = "held"
    DOUBTFUL = "doubtful"
    LOST = "lost"
    RELEASED = "released"


class Event(TextEnum):
    """What can happen to a lease."""

    RENEWED = "renewed"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    EXPIRED = "expired"
    MAX_HOLD = "max_hold"
    STALLED = "stalled"
    REVOKED = "revoked"
    FORKED = "forked"
    RELEASED = "released"


_LOSSES = (Event.REFUSED, Event.EXPIRED, Event.MAX_HOLD, Event.STALLED, Event.REVOKED, Event.FORKED)

TABLE: dict[LeasePhase, dict[Event, LeasePhase]] = {
    LeasePhase.HELD: {
        Event.RENEWED: LeasePhase.HELD,
        Event.UNKNOWN: LeasePhase.DOUBTFUL,
        **dict.fromkeys(_LOSSES, LeasePhase.LOST),
        Event.RELEASED: LeasePhase.RELEASED,
    },
    LeasePhase.DOUBTFUL: {
        Event.RENEWED: LeasePhase.HELD,
        Event.UNKNOWN: LeasePhase.DOUBTFUL,
        **dict.fromkeys(_LOSSES, LeasePhase.LOST),
        Event.RELEASED: LeasePhase.RELEASED,
    },
    LeasePhase.LOST: dict.fromkeys(Event, LeasePhase.LOST),
    LeasePhase.RELEASED: dict.fromkeys(Event, LeasePhase.RELEASED),
}

_REASONS: dict[Event, LossReason] = {
    Event.REFUSED: LossReason.STOLEN,
    Event.EXPIRED: LossReason.EXPIRED,
    Event.MAX_HOLD: LossReason.MAX_HOLD,
    Event.STALLED: LossReason.STALLED,
    Event.REVOKED: LossReason.REVOKED,
    Event.FORKED: LossReason.FORKED,
}


LIVE = (LeasePhase.HELD, LeasePhase.DOUBTFUL)  # compared by identity; read without a call for every lease


class LeaseState(NamedTuple):
    """The state of a lease at one moment: everything that decides whether it may be used."""

    phase: LeasePhase
    reason: LossReason | None
    granted: Instant  # before the request that granted it was sent
    confirmed: Instant  # before the last request that the store confirmed was sent
    progressed: Instant  # when the work last reported progress
    failures: int  # consecutive periods in which no renewal could be confirmed
    failed_period: int  # the last period that was counted as failed

    @property
    def live(self) -> bool:
        """Whether the lease is held as far as this record knows; `judge` applies the time."""
        return self.phase in LIVE


def granted(sent: Instant) -> LeaseState:
    """The state of a lease that the store has just granted to a request sent at `sent`."""
    return LeaseState(LeasePhase.HELD, None, sent, sent, sent, 0, 0)


def renewed(state: LeaseState, sent: Instant) -> LeaseState:
    """The store confirmed a renewal that was sent at `sent`. A confirmation after the loss changes nothing."""
    if not state.live:
        return state
    confirmed = sent if elapsed_ns(state.confirmed, sent) > 0 else state.confirmed
    return LeaseState(LeasePhase.HELD, None, state.granted, confirmed, state.progressed, 0, 0)


def renewed_in_time(
    state: LeaseState, timing: Timing, sent: Instant, now: Instant, tail_ns: int = 0
) -> LeaseState | None:
    """The same as judging it first, for a lease that only time can end; None when it needs to be judged."""
    if (
        state.phase is not LeasePhase.HELD
        or timing.next_check_ns == 0
        or elapsed_ns(state.confirmed, now) >= timing.loss_age_ns(tail_ns)
        or sent.mono <= state.confirmed.mono
    ):
        return None
    return tuple.__new__(LeaseState, (LeasePhase.HELD, None, state.granted, sent, state.progressed, 0, 0))


def unknown(state: LeaseState, timing: Timing, now: Instant) -> LeaseState:
    """A renewal brought no answer. Counts once per period; at the failure budget the lease is abandoned."""
    if not state.live:
        return state
    period = elapsed_ns(state.confirmed, now) // timing.renew_every_ns
    failures = state.failures
    if failures == 0 or period > state.failed_period:
        failures += 1
    doubtful = state._replace(
        phase=TABLE[state.phase][Event.UNKNOWN], failures=failures, failed_period=max(period, state.failed_period)
    )
    if failures >= timing.failures_max:
        return doubtful._replace(phase=LeasePhase.LOST, reason=LossReason.UNCONFIRMED)
    return doubtful


def ended(state: LeaseState, event: Event) -> LeaseState:
    """A definite end: refusal, release, revocation, fork. A final state does not change."""
    phase = TABLE[state.phase][event]
    if phase is state.phase:
        return state
    return state._replace(phase=phase, reason=_REASONS.get(event))


def released(state: LeaseState) -> LeaseState:
    """The end of nearly every lease: the same as `ended` with `Event.RELEASED`, for one that is live."""
    _, _, granted_at, confirmed, progressed_at, failures, failed_period = state
    return LeaseState(LeasePhase.RELEASED, None, granted_at, confirmed, progressed_at, failures, failed_period)


def progressed(state: LeaseState, now: Instant) -> LeaseState:
    """The work reported that it is getting somewhere."""
    return state._replace(progressed=now) if state.live else state


def judge(state: LeaseState, timing: Timing, now: Instant, tail_ns: int = 0) -> LeaseState:
    """The state of the lease at `now` by time alone, even if the renewer and the timer thread did not run."""
    if state.phase not in LIVE:
        return state
    if elapsed_ns(state.confirmed, now) >= timing.loss_age_ns(tail_ns):
        lost = ended(state, Event.EXPIRED)
        return lost._replace(reason=LossReason.UNCONFIRMED) if state.failures else lost
    if timing.max_hold_ns is not None and elapsed_ns(state.granted, now) >= timing.max_hold_ns:
        return ended(state, Event.MAX_HOLD)
    if timing.stall_after_ns is not None and elapsed_ns(state.progressed, now) >= timing.stall_after_ns:
        return ended(state, Event.STALLED)
    return state


def loss_in_ns(state: LeaseState, timing: Timing, now: Instant, tail_ns: int = 0) -> int:
    """How long until time alone ends the lease, if nothing else happens. Never negative."""
    left = timing.loss_age_ns(tail_ns) - elapsed_ns(state.confirmed, now)
    if timing.max_hold_ns is not None:
        left = min(left, timing.max_hold_ns - elapsed_ns(state.granted, now))
    if timing.stall_after_ns is not None:
        left = min(left, timing.stall_after_ns - elapsed_ns(state.progressed, now))
    return max(0, left)


def remaining_ns(state: LeaseState, timing: Timing, now: Instant) -> int:
    """How long the store still keeps the key for this holder: `Lease.remaining()`. Never negative."""
    if not state.live:
        return 0
    return max(0, timing.valid_ns() - elapsed_ns(state.confirmed, now))


def warn_in_ns(state: LeaseState, timing: Timing, now: Instant, tail_ns: int = 0) -> int:
    """How long until the holder should be warned. Zero or less: now."""
    return timing.warn_age_ns(tail_ns) - elapsed_ns(state.confirmed, now)


def renewal_in_ns(state: LeaseState, timing: Timing, now: Instant, draw: int) -> int:
    """How long until the next renewal attempt. `draw` in [0, 2^16) spreads the quick retries of a doubtful lease."""
    if state.phase is LeasePhase.DOUBTFUL:
        step = timing.renew_every_ns // 8
        return step // 2 + step * draw // 65536
    return max(0, timing.renew_every_ns - elapsed_ns(state.confirmed, now))


def renew_timeout_ns(state: LeaseState, timing: Timing, now: Instant, tail_ns: int = 0) -> int:
    """How long one renewal may take: its own limit, and never more than a third of what remains."""
    return max(1_000_000, min(timing.renew_timeout_ns, loss_in_ns(state, timing, now, tail_ns) // 3))


def mermaid() -> str:
    """The state diagram of the documentation, drawn from the table."""
    lines = ["stateDiagram-v2", "    [*] --> held: granted"]
    for phase, moves in TABLE.items():
        by_target: dict[LeasePhase, list[str]] = {}
        for event, target in moves.items():
            if target is not phase:
                by_target.setdefault(target, []).append(str(event))
        lines += [f"    {phase} --> {target}: {', '.join(events)}" for target, events in by_target.items()]
    return "\n".join([*lines, "    lost --> [*]", "    released --> [*]"])
