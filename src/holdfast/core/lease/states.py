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


class State(TextEnum):
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

TABLE: dict[State, dict[Event, State]] = {
    State.HELD: {
        Event.RENEWED: State.HELD,
        Event.UNKNOWN: State.DOUBTFUL,
        **dict.fromkeys(_LOSSES, State.LOST),
        Event.RELEASED: State.RELEASED,
    },
    State.DOUBTFUL: {
        Event.RENEWED: State.HELD,
        Event.UNKNOWN: State.DOUBTFUL,
        **dict.fromkeys(_LOSSES, State.LOST),
        Event.RELEASED: State.RELEASED,
    },
    State.LOST: dict.fromkeys(Event, State.LOST),
    State.RELEASED: dict.fromkeys(Event, State.RELEASED),
}

_REASONS: dict[Event, LossReason] = {
    Event.REFUSED: LossReason.STOLEN,
    Event.EXPIRED: LossReason.EXPIRED,
    Event.MAX_HOLD: LossReason.MAX_HOLD,
    Event.STALLED: LossReason.STALLED,
    Event.REVOKED: LossReason.REVOKED,
    Event.FORKED: LossReason.FORKED,
}


LIVE = (State.HELD, State.DOUBTFUL)  # compared by identity, and read without a call on the path of every lease


class Standing(NamedTuple):
    """The state of a lease at one moment: everything that decides whether it may be used."""

    state: State
    reason: LossReason | None
    granted: Instant  # before the request that granted it was sent
    confirmed: Instant  # before the last request that the store confirmed was sent
    progressed: Instant  # when the work last reported progress
    failures: int  # consecutive periods in which no renewal could be confirmed
    failed_period: int  # the last period that was counted as failed

    @property
    def live(self) -> bool:
        """Whether the lease is held as far as this record knows; `judge` applies the time."""
        return self.state in LIVE


def granted(sent: Instant) -> Standing:
    """The state of a lease that the store has just granted to a request sent at `sent`."""
    return Standing(State.HELD, None, sent, sent, sent, 0, 0)


def renewed(standing: Standing, sent: Instant) -> Standing:
    """The store confirmed a renewal that was sent at `sent`. A confirmation after the loss changes nothing."""
    if not standing.live:
        return standing
    confirmed = sent if elapsed_ns(standing.confirmed, sent) > 0 else standing.confirmed
    return Standing(State.HELD, None, standing.granted, confirmed, standing.progressed, 0, 0)


def renewed_in_time(
    standing: Standing, timing: Timing, sent: Instant, now: Instant, tail_ns: int = 0
) -> Standing | None:
    """The same as judging it first, for a lease that only time can end; None when it needs to be judged."""
    if (
        standing.state is not State.HELD
        or timing.next_check_ns == 0
        or elapsed_ns(standing.confirmed, now) >= timing.loss_age_ns(tail_ns)
        or sent.mono <= standing.confirmed.mono
    ):
        return None
    return tuple.__new__(Standing, (State.HELD, None, standing.granted, sent, standing.progressed, 0, 0))


def unknown(standing: Standing, timing: Timing, now: Instant) -> Standing:
    """A renewal brought no answer. Counts once per period; at the failure budget the lease is abandoned."""
    if not standing.live:
        return standing
    period = elapsed_ns(standing.confirmed, now) // timing.renew_every_ns
    failures = standing.failures
    if failures == 0 or period > standing.failed_period:
        failures += 1
    doubtful = standing._replace(
        state=TABLE[standing.state][Event.UNKNOWN], failures=failures, failed_period=max(period, standing.failed_period)
    )
    if failures >= timing.failures_max:
        return doubtful._replace(state=State.LOST, reason=LossReason.UNCONFIRMED)
    return doubtful


def ended(standing: Standing, event: Event) -> Standing:
    """A definite end: refusal, release, revocation, fork. A final state does not change."""
    state = TABLE[standing.state][event]
    if state is standing.state:
        return standing
    return standing._replace(state=state, reason=_REASONS.get(event))


def released(standing: Standing) -> Standing:
    """The end of nearly every lease: the same as `ended` with `Event.RELEASED`, for one that is live."""
    _, _, granted_at, confirmed, progressed_at, failures, failed_period = standing
    return Standing(State.RELEASED, None, granted_at, confirmed, progressed_at, failures, failed_period)


def progressed(standing: Standing, now: Instant) -> Standing:
    """The work reported that it is getting somewhere."""
    return standing._replace(progressed=now) if standing.live else standing


def judge(standing: Standing, timing: Timing, now: Instant, tail_ns: int = 0) -> Standing:
    """The state of the lease at `now` by time alone, even if the renewer and the timer thread did not run."""
    if standing.state not in LIVE:
        return standing
    if elapsed_ns(standing.confirmed, now) >= timing.loss_age_ns(tail_ns):
        lost = ended(standing, Event.EXPIRED)
        return lost._replace(reason=LossReason.UNCONFIRMED) if standing.failures else lost
    if timing.max_hold_ns is not None and elapsed_ns(standing.granted, now) >= timing.max_hold_ns:
        return ended(standing, Event.MAX_HOLD)
    if timing.stall_after_ns is not None and elapsed_ns(standing.progressed, now) >= timing.stall_after_ns:
        return ended(standing, Event.STALLED)
    return standing


def loss_in_ns(standing: Standing, timing: Timing, now: Instant, tail_ns: int = 0) -> int:
    """How long until time alone ends the lease, if nothing else happens. Never negative."""
    left = timing.loss_age_ns(tail_ns) - elapsed_ns(standing.confirmed, now)
    if timing.max_hold_ns is not None:
        left = min(left, timing.max_hold_ns - elapsed_ns(standing.granted, now))
    if timing.stall_after_ns is not None:
        left = min(left, timing.stall_after_ns - elapsed_ns(standing.progressed, now))
    return max(0, left)


def remaining_ns(standing: Standing, timing: Timing, now: Instant) -> int:
    """How long the store still keeps the key for this holder: `Lease.remaining()`. Never negative."""
    if not standing.live:
        return 0
    return max(0, timing.valid_ns() - elapsed_ns(standing.confirmed, now))


def warn_in_ns(standing: Standing, timing: Timing, now: Instant, tail_ns: int = 0) -> int:
    """How long until the holder should be warned. Zero or less: now."""
    return timing.warn_age_ns(tail_ns) - elapsed_ns(standing.confirmed, now)


def renewal_in_ns(standing: Standing, timing: Timing, now: Instant, draw: int) -> int:
    """How long until the next renewal attempt. `draw` in [0, 2^16) spreads the quick retries of a doubtful lease."""
    if standing.state is State.DOUBTFUL:
        step = timing.renew_every_ns // 8
        return step // 2 + step * draw // 65536
    return max(0, timing.renew_every_ns - elapsed_ns(standing.confirmed, now))


def renew_timeout_ns(standing: Standing, timing: Timing, now: Instant, tail_ns: int = 0) -> int:
    """How long one renewal may take: its own limit, and never more than a third of what remains."""
    return max(1_000_000, min(timing.renew_timeout_ns, loss_in_ns(standing, timing, now, tail_ns) // 3))


def mermaid() -> str:
    """The state diagram of the documentation, drawn from the table."""
    lines = ["stateDiagram-v2", "    [*] --> held: granted"]
    for state, moves in TABLE.items():
        by_target: dict[State, list[str]] = {}
        for event, target in moves.items():
            if target is not state:
                by_target.setdefault(target, []).append(str(event))
        lines += [f"    {state} --> {target}: {', '.join(events)}" for target, events in by_target.items()]
    return "\n".join([*lines, "    lost --> [*]", "    released --> [*]"])
