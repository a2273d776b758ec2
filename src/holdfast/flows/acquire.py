"""Getting a lease: try, wait, and undo what may have happened when nobody knows whether it did.

Order of things: the local mutex first, then the store. Three ways out that never mix: *granted*; *busy* (contention, a
value for `try_once`, `AcquireTimeout` when the wait is over); a store error, which the error policy of the risk class
turns into a raise, a degraded possession, or more waiting. Any end without a definite answer (a timeout, a
cancellation, Ctrl-C) is followed by one compare-and-delete that the caller's own end cannot cut short.

Time limits hold for the whole call: each request to the store gets at most what is left until the caller's deadline
(at least `LEAST_REQUEST_NS`, because one attempt is always made), and cleanup runs in the background. The caller waits
for its cleanup for at most `CLEANUP_WAIT_NS`. A timeout of zero is one attempt, limited as `try_acquire` is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from holdfast.core.backoff import Backoff
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import Pretended
from holdfast.core.lease.states import Event
from holdfast.core.lease.timing import Timing
from holdfast.core.lease.waiting import Waiter, pause
from holdfast.core.ports import Place, Ports, Watch
from holdfast.errors import (
    AcquireTimeout,
    AlreadyHeld,
    BackendError,
    BadInput,
    Closed,
    Misconfigured,
    PolicyDenied,
    Timeout,
    Unavailable,
)
from holdfast.flows.store_health import StoreHealth
from holdfast.types import MS, NS, Ask, Busy, Grant, Instant, elapsed_ns, fingerprint

# The policy is asked when the store fails, not before: it may have been switched while the caller waited.
OnErrorOf: TypeAlias = Callable[[str | None], OnError]

CLEANUP_WAIT_NS = 20 * MS  # a healthy store has answered by then; a hung one is left to the background
LEAST_REQUEST_NS = 20 * MS
TRUSTED_NS = 100 * MS  # most leases are released sooner, and nobody asks the store about their holders
ASK_AGAIN_NS = NS  # a caller that waits for a holder in this process asks the store about it so often
FAIR_REQUEST_NS = 100 * MS  # silence for a shorter time proves nothing about the store

_WAIT, _GRANTED = (
    Measure.WAIT,
    MeasuredOutcome.GRANTED,
)  # looked up in every acquisition, and slowly on an enum of Python 3.11


@dataclass(slots=True, unsafe_hash=True)
class Wish:
    """What is wanted: the description of a lock, as far as flows need it. Made for every lock, and never changed."""

    key: str
    family: str
    owner: str
    risk: str | None
    timing: Timing
    retry: Backoff
    fair: bool
    detached: bool = False  # the grant is meant to outlive this process; a store must not reclaim it when that dies


class AcquireResult(NamedTuple):
    """What was got. Without a grant it is degraded: only the local mutex stands behind it."""

    token: str
    grant: Grant | None
    sent: Instant
    place: Place | None
    error: BackendError | None = None
    contested: bool = False  # a fair lock, and others stood in line for it

    def __repr__(self) -> str:
        return f"Possession({self.grant!r})"


def noun(family: str) -> str:
    """What people call a lock of this family: `workflow.run` is a run lock, the default family just a lock."""
    return "lock" if family == "default" else f"{family.rsplit('.', 1)[-1]} lock"


def note(
    ports: Ports,
    wish: Wish,
    kind: EventKind,
    *,
    fence: int | None = None,
    detail: str = "",
    ok: bool = True,
    began_ns: int | None = None,
) -> None:
    """Report that something happened to this lock."""
    if not ports.observer.tally(kind, wish.family):
        return
    ports.observer.note(
        Record(
            kind,
            ports.clock.now().wall,
            wish.key,
            wish.family,
            wish.owner,
            fence=fence,
            risk=wish.risk,
            began_ns=began_ns,
            ok=ok,
            detail=detail,
        )
    )


async def try_once(
    ports: Ports, health: StoreHealth, wish: Wish, token: str, ticket: str | None = None, limit_ns: int | None = None
) -> tuple[Grant | Busy, Instant]:
    """One attempt at the store. The instant returned was read before the request was sent.

    If this raises anything but `Unavailable` or `Misconfigured`, the caller starts `undo`.
    """
    limit = ports.request_timeout_ns if limit_ns is None else min(ports.request_timeout_ns, limit_ns)
    health.admit(limit)
    ticket_ttl = 0 if ticket is None else ticket_lease_ns(wish)
    ask = Ask(wish.key, token, wish.owner, wish.family, wish.timing.ttl_ns, ticket, ticket_ttl, wish.detached)
    sent = ports.clock.now()
    try:
        if ARMED:
            await areach("flow.acquire.ask")
        answer = await ports.store.acquire(ask, limit)
        if ARMED:
            await areach("flow.acquire.answered")
    except (Unavailable, Timeout, Misconfigured) as error:
        cut_short = _hurried(limit) and elapsed_ns(sent, ports.clock.now()) >= limit
        if not isinstance(error, Misconfigured) and not cut_short:
            health.failed(error)
        note(ports, wish, EventKind.FAILED, detail=str(error), ok=False)
        raise
    health.answered()
    if isinstance(answer, Grant) and elapsed_ns(sent, ports.clock.now()) >= wish.timing.loss_age_ns():
        # The answer was so slow that the lease is already too old to be used. It is released, not handed out.
        raise Timeout(f"acquire lock: the store's answer for {wish.key} took longer than the lease may be trusted")
    return answer, sent


def _hurried(limit_ns: int | None) -> bool:
    """Whether a request had so little time that its failure may be the caller's hurry, and not the store's."""
    return limit_ns is not None and limit_ns < FAIR_REQUEST_NS


async def undo(ports: Ports, wish: Wish, token: str, wait_ns: int = 0) -> None:
    """Release a grant that may exist, in the background. The caller waits for it for at most `wait_ns`.

    The reaper is told first, so that nothing which ends this early (a closed event loop, a second interrupt) leaves the
    grant behind. It begins when the request sent here has had its time.
    """
    orphan = ports.reaper.reap(wish.key, token, wish.timing.ttl_ns, ports.request_timeout_ns)
    await ports.runtime.finish(_undo(ports, wish, token, orphan), wait_ns)


async def _undo(ports: Ports, wish: Wish, token: str, orphan: object) -> None:
    """Only a confirmed release settles it.

    "Not there" does not: the acquire request may still be on its way, on a connection that was given up, and arrive
    after this. So anything else is left to the reaper, which asks a few times more.
    """
    settled = False
    try:
        if ARMED:
            await areach("flow.undo.send")
        settled = await ports.store.release(wish.key, token, None, 0, ports.request_timeout_ns)
        if ARMED:
            await areach("flow.undo.answered")
    except BadInput:
        return  # the store has no lock of this name and sent nothing: there is no grant
    except BackendError:
        pass
    finally:
        ports.reaper.settle(orphan, released=settled)
    if settled:
        note(ports, wish, EventKind.COMPENSATED)


def ticket_lease_ns(wish: Wish) -> int:
    """How long a place in a fair queue outlives its waiter: three polls."""
    return 3 * wish.retry.longest_ns() + NS


class Patience(NamedTuple):
    """How long a caller waits, counted from when it came."""

    came: Instant
    timeout_ns: int | None

    def left_ns(self, now: Instant) -> int | None:
        """What is left of it; None: for ever."""
        return None if self.timeout_ns is None else max(0, self.timeout_ns - elapsed_ns(self.came, now))

    def over(self, now: Instant) -> bool:
        """Whether the deadline has passed."""
        return self.timeout_ns is not None and elapsed_ns(self.came, now) >= self.timeout_ns


async def attempt(
    ports: Ports, health: StoreHealth, wish: Wish, on_error: OnErrorOf, place: Place
) -> AcquireResult | Busy:
    """Ask once and wait only for the answer. The caller owns `place` and leaves it unless it possesses."""
    came = ports.clock.now()
    if not await _enter(ports, health, wish, place, Patience(came, 0)):
        ports.observer.measured(_WAIT, wish.family, MeasuredOutcome.BUSY, 0)
        return Busy(wish.key, "another holder in this process", None)
    contest = _Contest(came, place)
    contest.token = ports.entropy.token()
    try:
        try:
            if (pretended := _pretended(ports, wish, on_error)) is not None:
                raise pretended
            contest.asked = True
            answer, sent = await try_once(ports, health, wish, contest.token)
        except BackendError as error:
            await _undo_unknown(ports, wish, contest, error, Patience(came, None))
            possession = _without_store(ports, wish, on_error(wish.risk), place, error)
            _over(ports, wish, contest, MeasuredOutcome.DEGRADED)
            return possession
        if isinstance(answer, Grant):
            if ARMED:
                await areach("flow.acquire.granted")
            _over(ports, wish, contest, _GRANTED)
            return AcquireResult(contest.token, answer, sent, place)
        contest.asked = False
        note(ports, wish, EventKind.BUSY, detail=answer.owner or "")
        _over(ports, wish, contest, MeasuredOutcome.BUSY)
        return answer  # noqa: TRY300 - until it is returned it can be interrupted
    except BaseException as error:
        _over(ports, wish, contest, _outcome(error))
        await _withdraw(ports, wish, contest, error)
        raise


def _without_store(ports: Ports, wish: Wish, mode: OnError, place: Place, error: BackendError) -> AcquireResult:
    """The store failed and nobody is waiting: run without it if the policy says so, else raise.

    A store that is congested has not failed: its locks are in use, and a caller without one would race with them. One
    that stays congested and answers nothing has failed (`StoreHealth.failed`).

    A degraded possession has a token of its own: a late clean-up of the failed attempt must not undo its promotion.
    """
    up = isinstance(error, Misconfigured) or error.congested
    if mode is OnError.FAIL_OPEN and not up:
        kind = EventKind.EXERCISED if isinstance(error, Pretended) else EventKind.FELL_BACK
        note(ports, wish, kind, detail=str(error), ok=False)
        return AcquireResult(ports.entropy.token(), None, ports.clock.now(), place, error)
    if wish.risk is None or up:
        raise error
    note(ports, wish, EventKind.DENIED, detail=str(error), ok=False)
    raise PolicyDenied(
        f"risk class {wish.risk} fails closed: {wish.key} is not run without the store ({error})",
        key=wish.key,
        risk=wish.risk,
    ) from error


def _pretended(ports: Ports, wish: Wish, on_error: OnErrorOf) -> Pretended | None:
    """What this acquisition meets in place of the store, if it was drawn for an exercise. The breaker is not told."""
    exercises = ports.exercises
    if exercises is None or not exercises.running or not exercises.drawn(wish.family, wish.risk, on_error):
        return None
    return Pretended(f"an exercise of the error policy: the store was not asked for {wish.key}")


async def acquire(
    ports: Ports, health: StoreHealth, wish: Wish, on_error: OnErrorOf, timeout_ns: int | None, place: Place
) -> AcquireResult:
    """Wait for the lock for as long as the caller wants to. The caller owns `place` and leaves it if this raises."""
    patience = Patience(ports.clock.now(), timeout_ns)
    contest = _Contest(patience.came, place)
    try:
        ports.observer.waits(contest, wish.family)
        if not await _enter(ports, health, wish, place, patience):
            raise _timed_out(ports, wish, patience, None)
        contest.token = ports.entropy.token()
        if wish.fair:
            contest.ticket = ports.entropy.token()
        possession = await _contend(ports, health, wish, on_error, patience, place, contest)
        if contest.watch is not None:
            await contest.watch.close()
        if ARMED:
            await areach("flow.acquire.granted")
        ports.observer.waits_no_more(contest)
        _over(ports, wish, contest, MeasuredOutcome.DEGRADED if possession.grant is None else _GRANTED)
        return possession  # noqa: TRY300 - until it is returned it can be interrupted
    except BaseException as error:
        ports.observer.waits_no_more(contest)
        _over(ports, wish, contest, _outcome(error))
        await _withdraw(ports, wish, contest, error)
        raise


async def _enter(ports: Ports, health: StoreHealth, wish: Wish, place: Place, patience: Patience) -> bool:
    """Wait for the local mutex. False: the time is over.

    The holder in this process may have lost the key without knowing it: an operator broke the lock, or the store was
    emptied. Other processes see a free key then, and so must this one. So a caller that does not wait asks the store
    about the holder, and of those who wait the first one does, now and then.
    """
    if await place.enter(0):
        return True
    if patience.timeout_ns == 0 or (patience.timeout_ns is None and _waits_for_itself(ports, wish, place)):
        await _ask_for_the_holder(ports, health, wish, patience)
        if await place.enter(0):
            return True
        if patience.timeout_ns is None and _waits_for_itself(ports, wish, place):
            raise _already_held(wish)
    pause_ns = TRUSTED_NS
    while True:
        left_ns = patience.left_ns(ports.clock.now())
        if await place.enter(pause_ns if left_ns is None else min(pause_ns, left_ns)):
            return True
        if patience.over(ports.clock.now()):
            return False
        if place.next:
            await _ask_for_the_holder(ports, health, wish, patience)
        pause_ns = ASK_AGAIN_NS


async def _ask_for_the_holder(ports: Ports, health: StoreHealth, wish: Wish, patience: Patience) -> None:
    """End the lease that this process holds if the store has another holder of the key, or none.

    A store that does not answer soon leaves things as they are: the renewal finds out later.
    """
    inside = ports.runtime.gate.inside(wish.key)
    held = None if inside is None else inside.held
    if held is None or not held.standing().live or held.grant is None or health.open:
        return
    left_ns = patience.left_ns(ports.clock.now()) or FAIR_REQUEST_NS
    if left_ns < LEAST_REQUEST_NS:
        return
    mark = fingerprint(held.grant.token)
    try:
        found = await ports.store.inspect(wish.key, min(left_ns, FAIR_REQUEST_NS, ports.request_timeout_ns))
    except BackendError:
        return
    if found is None or found.fingerprint != mark:
        held.end(Event.REFUSED)


def _waits_for_itself(ports: Ports, wish: Wish, place: Place) -> bool:
    """Whether the caller is inside already, and its lease does not end unless somebody releases it."""
    inside = ports.runtime.gate.inside(wish.key)
    if inside is None or place.caller is None or inside.caller != place.caller:
        return False
    return inside.held is None or not inside.held.runs_out


def _already_held(wish: Wish) -> AlreadyHeld:
    return AlreadyHeld(
        f"{noun(wish.family)} already held: {wish.key} is held by this same thread or task ({wish.owner}), which would "
        "wait for itself forever; use the lease that it has, or release that first. If another thread or task releases "
        "it, call lease.hand_over() before you pass it on; or give acquire() a timeout",
        key=wish.key,
        holder=wish.owner,
    )


def _over(ports: Ports, wish: Wish, contest: _Contest, outcome: MeasuredOutcome) -> None:
    """The wait is over. It is measured once: who was interrupted while a grant was handed over has had it."""
    if not contest.over:
        contest.over = True
        ports.observer.measured(_WAIT, wish.family, outcome, ports.clock.now().mono - contest.came.mono)


def _outcome(error: BaseException) -> MeasuredOutcome:
    if isinstance(error, AcquireTimeout):
        return MeasuredOutcome.BUSY
    return MeasuredOutcome.FAILED if isinstance(error, BackendError | PolicyDenied) else MeasuredOutcome.GIVEN_UP


class _Contest:
    """What one waiter has left at the store, and must not leave behind.

    `asked` is set while the store may know the token and the asker does not know its answer. It is kept at the place,
    which the caller has too.
    """

    __slots__ = ("_place", "came", "contested", "over", "ticket", "token", "watch")

    def __init__(self, came: Instant, place: Place) -> None:
        self._place = place
        self.came = came
        self.token = ""  # drawn when it is this waiter's turn to ask
        self.ticket: str | None = None
        self.watch: Watch | None = None
        self.contested = False  # for a fair lock, by other processes
        self.over = False  # the wait, and it has been measured

    @property
    def asked(self) -> bool:
        return self._place.asked is not None

    @asked.setter
    def asked(self, asked: bool) -> None:
        self._place.asked = self.token if asked else None


async def _contend(
    ports: Ports,
    health: StoreHealth,
    wish: Wish,
    on_error: OnErrorOf,
    patience: Patience,
    place: Place,
    contest: _Contest,
) -> AcquireResult:
    """Ask, sleep, ask again: bounded by the caller's patience."""
    waiter = Waiter()
    busy: Busy | None = None  # the last answer of the store
    pretended = _pretended(ports, wish, on_error)
    while True:  # ends with a grant, an error, or the caller's patience
        if ports.runtime.gate.closed:
            raise Closed
        limit = _request_limit_ns(ports, patience)
        holder: int | None = None
        error: BackendError | None = None
        try:
            if pretended is not None:
                first, pretended = pretended, None
                raise first
            contest.asked = True
            answer, sent = await try_once(ports, health, wish, contest.token, contest.ticket, limit)
        except BackendError as raised:
            error = raised
            await _undo_unknown(ports, wish, contest, error, patience)
            if busy is not None and _hurried(limit) and patience.over(ports.clock.now()):
                raise _timed_out(ports, wish, patience, busy) from error  # it is busy, as far as is known
            mode = on_error(wish.risk)
            if mode is not OnError.WAIT or isinstance(error, Misconfigured):
                return _without_store(ports, wish, mode, place, error)
            # A clean-up of the old token may still be on its way, and would give back what is asked for under it next.
            contest.token = ports.entropy.token()
        else:
            if isinstance(answer, Grant):
                return AcquireResult(contest.token, answer, sent, place, contested=contest.contested)
            _found_busy(ports, wish, contest, answer)
            busy, holder = answer, answer.remaining_ns
        if patience.over(ports.clock.now()):
            raise _timed_out(ports, wish, patience, error or busy)
        if error is None and contest.watch is None and ports.store.capabilities.wakeups:
            contest.watch = await _listen(ports, wish, patience)
            if contest.watch is not None:
                continue  # the lock may have been released before we listened: ask once more before sleeping
        left = patience.left_ns(ports.clock.now())
        waiter, asleep = pause(waiter, wish.retry, holder, left, contest.watch is not None, ports.entropy.below)
        await _sleep(ports, contest.watch, asleep)


def _found_busy(ports: Ports, wish: Wish, contest: _Contest, answer: Busy) -> None:
    contest.asked = False
    contest.contested |= wish.fair and (answer.ahead > 0 or answer.owner != wish.owner)
    if answer.spent:
        contest.token = ports.entropy.token()
    note(ports, wish, EventKind.BUSY, detail=answer.owner or "")


def _request_limit_ns(ports: Ports, patience: Patience) -> int | None:
    """How long the next request may take. None: as long as any request, because the caller has set no limit."""
    if not patience.timeout_ns:
        return None
    left = patience.left_ns(ports.clock.now())
    return None if left is None else max(left, LEAST_REQUEST_NS)


async def _undo_unknown(ports: Ports, wish: Wish, contest: _Contest, error: BackendError, patience: Patience) -> None:
    """A request failed. Undo it in the background, unless it certainly had no effect."""
    if contest.asked and not isinstance(error, Unavailable | Misconfigured):
        late = patience.over(ports.clock.now()) and patience.timeout_ns != 0
        await undo(ports, wish, contest.token, 0 if late else CLEANUP_WAIT_NS)
    contest.asked = False


async def _withdraw(ports: Ports, wish: Wish, contest: _Contest, error: BaseException) -> None:
    """A waiter gives up. What it left at the store is cleaned up in the background: watch, ticket, even the grant.

    After a store error the caller does not wait for that: the store has just kept it waiting.
    """
    failed = isinstance(error, BackendError | PolicyDenied) or isinstance(error.__cause__, BackendError)
    wait_ns = 0 if failed else CLEANUP_WAIT_NS
    queued = contest.watch is not None or contest.ticket is not None
    if contest.asked:
        await undo(ports, wish, contest.token, 0 if queued else wait_ns)
        contest.asked = False
    if queued:
        await ports.runtime.finish(_leave_queue(ports, wish, contest), wait_ns)


async def take_back(ports: Ports, wish: Wish, place: Place) -> None:
    """Undo what was got for a caller who was interrupted before it had it, and leave the place."""
    try:
        if place.asked is not None:
            await undo(ports, wish, place.asked, CLEANUP_WAIT_NS)
    finally:
        place.leave()


async def _leave_queue(ports: Ports, wish: Wish, contest: _Contest) -> None:
    if contest.watch is not None:
        await contest.watch.close()
    if contest.ticket is not None:
        await _leave(ports, wish, contest.ticket)


async def _listen(ports: Ports, wish: Wish, patience: Patience) -> Watch | None:
    """Listen at the key. Hints are an accelerator: without them the waiter polls, and says nothing about it."""
    left = patience.left_ns(ports.clock.now())
    limit = ports.request_timeout_ns if left is None else min(ports.request_timeout_ns, left)
    try:
        if ARMED:
            await areach("flow.acquire.listen")
        return await ports.store.watch(wish.key, limit)
    except BackendError:
        return None


async def _sleep(ports: Ports, watch: Watch | None, ns: int) -> None:
    if ARMED:
        await areach("flow.acquire.sleep")
    if watch is None:
        await ports.runtime.sleep(ns)
    else:
        await watch.wait(ns)


async def _leave(ports: Ports, wish: Wish, ticket: str) -> None:
    try:
        await ports.store.leave(wish.key, ticket, ports.request_timeout_ns)
    except BadInput:
        return  # as in `undo`
    except BackendError as error:
        note(ports, wish, EventKind.FAILED, detail=f"ticket not given back, it will expire: {error}", ok=False)


def _timed_out(
    ports: Ports, wish: Wish, patience: Patience, answer: Busy | BackendError | None
) -> AcquireTimeout | BackendError | PolicyDenied:
    """The wait is over: busy, or, under the `wait` policy, the store never came back."""
    waited = elapsed_ns(patience.came, ports.clock.now()) / NS
    note(ports, wish, EventKind.TIMED_OUT, detail=f"waited {waited:.3f} s", ok=False)
    if isinstance(answer, BackendError):
        return answer
    holder = answer.owner if answer is not None else "another holder in this process"
    left = answer.remaining_ns if answer is not None else None
    return AcquireTimeout(
        f"{noun(wish.family)} busy: {wish.key} is held by {holder or 'somebody'}; waited {waited:.3g} s",
        key=wish.key,
        holder=holder,
        retry_after=(wish.retry.longest_ns() if left is None else left) / NS,
        remaining=None if left is None else left / NS,
    )
