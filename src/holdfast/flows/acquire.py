"""Acquiring a lease: request, wait, and undo a request of unknown outcome.

The local mutex comes first, then the store. There are three outcomes, which never mix: *granted*; *busy* (contention: a
value for `attempt`, `AcquireTimeout` at the deadline); a store error, which the error policy of the risk class turns
into a raise, a degraded lease, or more waiting. Any end without a definite answer (a timeout, a cancellation, Ctrl-C)
is followed by one compare-and-delete that the end of the caller cannot cut short.

Time limits hold for the whole call: each request to the store gets at most what is left until the caller's deadline
(at least `LEAST_REQUEST_NS`, because one attempt is always made), and cleanup runs in the background. The caller waits
for its cleanup for at most `CLEANUP_WAIT_NS`. A timeout of zero is one attempt, limited as `try_acquire` is.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import Pretended
from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import Event
from holdfast.core.lease.waiting import Waiter, pause
from holdfast.core.ports import MutexEntry, Ports, Watch
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
from holdfast.flows.demand import check_guarantee
from holdfast.types import MS, NS, AcquireRequest, Busy, Grant, Guarantee, Instant, elapsed_ns, fingerprint

CLEANUP_WAIT_NS = 20 * MS  # a healthy store has answered by then; a hung one is left to the background
LEAST_REQUEST_NS = 20 * MS
TRUSTED_NS = 100 * MS  # most leases are released sooner, and the store is not asked about their holders
ASK_AGAIN_NS = NS  # how often a caller that waits for a holder in this process asks the store about it
FAIR_REQUEST_NS = 100 * MS  # no answer for a shorter time proves nothing about the store

_FIRST = Waiter()
_ANY = Guarantee.EFFICIENCY_ONLY
_WAIT, _GRANTED = (
    Measure.WAIT,
    MeasuredOutcome.GRANTED,
)  # looked up in every acquisition, and slowly on an enum of Python 3.11


class AcquireResult(NamedTuple):
    """The result of an acquire request. Without a grant it is degraded: only the local mutex protects it."""

    token: str
    grant: Grant | None
    sent: Instant
    entry: MutexEntry | None
    error: BackendError | None = None
    contested: bool = False  # a fair lock, and other processes were queued for it

    def __repr__(self) -> str:
        return f"AcquireResult({self.grant!r})"


def noun(family: str) -> str:
    """The name of a lock of this family in messages: `workflow.run` is a run lock, the default family a lock."""
    return "lock" if family == "default" else f"{family.rsplit('.', 1)[-1]} lock"


def note(
    ports: Ports,
    spec: LockSpec,
    kind: EventKind,
    *,
    fence: int | None = None,
    detail: str = "",
    ok: bool = True,
    began_ns: int | None = None,
) -> None:
    """Report that something happened to this lock."""
    if not ports.observer.tally(kind, spec.family):
        return
    ports.observer.note(
        Record(
            kind,
            ports.clock.now().wall,
            spec.key,
            spec.family,
            spec.owner,
            fence=fence,
            risk=spec.risk,
            began_ns=began_ns,
            ok=ok,
            detail=detail,
        )
    )


async def try_once(
    ports: Ports,
    spec: LockSpec,
    token: str,
    sent: Instant,
    ticket: str | None = None,
    limit_ns: int | None = None,
) -> tuple[Grant | Busy, Instant, Instant]:
    """Ask the store once. Returns its answer, `sent`, and when the answer had arrived.

    `sent` was read before this call, so it errs towards an older lease. If this raises anything but `Unavailable` or
    `Misconfigured`, the caller starts `undo`.
    """
    limit = ports.request_timeout_ns if limit_ns is None else min(ports.request_timeout_ns, limit_ns)
    ports.breaker.admit(limit)
    ticket_ttl = 0 if ticket is None else ticket_lease_ns(spec)
    ask = AcquireRequest(
        spec.key, token, spec.owner, spec.family, spec.timing.ttl_ns, ticket, ticket_ttl, spec.detached
    )
    try:
        if ARMED:
            await areach("flow.acquire.ask")
        answer = await ports.store.acquire(ask, limit)
        if ARMED:
            await areach("flow.acquire.answered")
    except (Unavailable, Timeout, Misconfigured) as error:
        cut_short = _hurried(limit) and elapsed_ns(sent, ports.clock.now()) >= limit
        if not isinstance(error, Misconfigured) and not cut_short:
            ports.breaker.failed(error)
        note(ports, spec, EventKind.FAILED, detail=str(error), ok=False)
        raise
    ports.breaker.answered()
    now = ports.clock.now()
    if isinstance(answer, Grant) and elapsed_ns(sent, now) >= spec.timing.loss_age_ns():
        # The answer was so slow that the lease is already too old to be used. It is released, not returned.
        raise Timeout(f"acquire lock: the store's answer for {spec.key} took longer than the lease may be trusted")
    return answer, sent, now


def _hurried(limit_ns: int | None) -> bool:
    """Whether a request had so little time that its failure may be the caller's hurry, and not the store's."""
    return limit_ns is not None and limit_ns < FAIR_REQUEST_NS


async def undo(ports: Ports, spec: LockSpec, token: str, wait_ns: int = 0, waiter: _Acquisition | None = None) -> None:
    """Release a grant that may exist, in the background, and then let its waiter leave the queue.

    The caller waits for both for at most `wait_ns`. The grant comes first: a hint that the waiter passes on before that
    would wake another one in vain.

    The reaper is told first, so that nothing which ends this early (a closed event loop, a second interrupt) leaves the
    grant behind. It begins when the request sent here has had its time.
    """
    orphan = ports.reaper.reap(spec.key, token, spec.timing.ttl_ns, ports.request_timeout_ns)
    await ports.runtime.finish(_undo(ports, spec, token, orphan, waiter), wait_ns)


async def _undo(ports: Ports, spec: LockSpec, token: str, orphan: object, waiter: _Acquisition | None) -> None:
    try:
        await _release_unknown(ports, spec, token, orphan)
    finally:
        if waiter is not None:
            await _leave_queue(ports, spec, waiter)


async def _release_unknown(ports: Ports, spec: LockSpec, token: str, orphan: object) -> None:
    """Only a confirmed release settles it.

    "Not there" does not: the acquire request may still be on its way, on a connection that was given up, and arrive
    after this. So anything else is left to the reaper, which asks a few times more.
    """
    settled = False
    try:
        if ARMED:
            await areach("flow.undo.send")
        settled = await ports.store.release(spec.key, token, None, 0, ports.request_timeout_ns)
        if ARMED:
            await areach("flow.undo.answered")
    except BadInput:
        return  # the store has no lock of this name and sent nothing: there is no grant
    except BackendError:
        pass
    finally:
        ports.reaper.settle(orphan, released=settled)
    if settled:
        note(ports, spec, EventKind.COMPENSATED)


def ticket_lease_ns(spec: LockSpec) -> int:
    """How long a ticket in a fair queue outlives its waiter: three polls."""
    return 3 * spec.retry.longest_ns() + NS


class _Acquisition:
    """One call of `acquire` or `attempt`: its deadline, and what it must not leave behind at the store.

    `entry.asked` is set while the store may know the token and this flow does not know the answer. It is kept at the
    entry because the caller has that too.
    """

    __slots__ = ("came", "contested", "entry", "measured", "ticket", "timeout_ns", "token", "watch")

    def __init__(self, came: Instant, timeout_ns: int | None, entry: MutexEntry) -> None:
        self.came = came
        self.timeout_ns = timeout_ns  # counted from `came`; None: no deadline
        self.entry = entry
        self.token = ""  # drawn when the local mutex is entered
        self.ticket: str | None = None
        self.watch: Watch | None = None
        self.contested = False  # a fair lock, and other processes are queued for it
        self.measured = False

    def left_ns(self, now: Instant) -> int | None:
        """The time until the deadline; None: there is none."""
        return None if self.timeout_ns is None else max(0, self.timeout_ns - elapsed_ns(self.came, now))

    def late(self, now: Instant) -> bool:
        """Whether the deadline has passed."""
        return self.timeout_ns is not None and elapsed_ns(self.came, now) >= self.timeout_ns


async def attempt(ports: Ports, spec: LockSpec, entry: MutexEntry) -> AcquireResult | Busy:
    """Ask the store once and wait only for its answer. The caller owns `entry`, and leaves it without a lease."""
    if spec.guarantee is not _ANY:
        await check_guarantee(ports, spec)
    came = sent = ports.clock.now()
    acquisition = _Acquisition(came, 0, entry)
    if not await entry.enter(0):
        if not await _wait_for_turn(ports, spec, acquisition):
            ports.observer.measured(_WAIT, spec.family, MeasuredOutcome.BUSY, 0)
            return Busy(spec.key, "another holder in this process", None)
        sent = ports.clock.now()
    acquisition.timeout_ns = None
    acquisition.token = ports.entropy.token()
    try:
        try:
            if (pretended := _pretended(ports, spec)) is not None:
                raise pretended
            entry.asked = acquisition.token
            answer, sent, now = await try_once(ports, spec, acquisition.token, sent)
        except BackendError as error:
            await _undo_unknown(ports, spec, acquisition, error)
            result = _without_store(ports, spec, ports.policy.on_error(spec.risk), entry, error)
            _measure_wait(ports, spec, acquisition, MeasuredOutcome.DEGRADED)
            return result
        if isinstance(answer, Grant):
            if ARMED:
                await areach("flow.acquire.granted")
            _measure_wait(ports, spec, acquisition, _GRANTED, now)
            return AcquireResult(acquisition.token, answer, sent, entry)
        entry.asked = None
        note(ports, spec, EventKind.BUSY, detail=answer.owner or "")
        _measure_wait(ports, spec, acquisition, MeasuredOutcome.BUSY, now)
        return answer  # noqa: TRY300 - until it is returned it can be interrupted
    except BaseException as error:
        _measure_wait(ports, spec, acquisition, _outcome(error))
        await _withdraw(ports, spec, acquisition, error)
        raise


def _without_store(
    ports: Ports, spec: LockSpec, mode: OnError, entry: MutexEntry, error: BackendError
) -> AcquireResult:
    """The store failed, and the policy is not to wait: run without the store if the policy allows it, else raise.

    A congested store has not failed: its locks are in use, and a caller without one would race with their holders. A
    store that stays congested and answers nothing has failed (`StoreBreaker.failed`).

    A degraded lease gets a new token: a late clean-up of the failed attempt must not undo its promotion.
    """
    up = isinstance(error, Misconfigured) or error.congested
    if mode is OnError.FAIL_OPEN and not up:
        kind = EventKind.EXERCISED if isinstance(error, Pretended) else EventKind.FELL_BACK
        note(ports, spec, kind, detail=str(error), ok=False)
        return AcquireResult(ports.entropy.token(), None, ports.clock.now(), entry, error)
    if spec.risk is None or up:
        raise error
    note(ports, spec, EventKind.DENIED, detail=str(error), ok=False)
    raise PolicyDenied(
        f"risk class {spec.risk} fails closed: {spec.key} is not run without the store ({error})",
        key=spec.key,
        risk=spec.risk,
    ) from error


def _pretended(ports: Ports, spec: LockSpec) -> Pretended | None:
    """The pretended error of this acquisition, if it was drawn for an exercise. The breaker does not count it."""
    exercises = ports.exercises
    if exercises is None or not exercises.running or not exercises.drawn(spec.family, spec.risk, ports.policy.on_error):
        return None
    return Pretended(f"an exercise of the error policy: the store was not asked for {spec.key}")


async def acquire(ports: Ports, spec: LockSpec, timeout_ns: int | None, entry: MutexEntry) -> AcquireResult:
    """Wait for the lock until the caller's deadline. The caller owns `entry`, and leaves it if this raises."""
    if spec.guarantee is not _ANY:
        await check_guarantee(ports, spec, timeout_ns)
    came = sent = ports.clock.now()
    acquisition = _Acquisition(came, timeout_ns, entry)
    try:
        ports.observer.waits(acquisition, spec.family)
        if not await entry.enter(0):
            if not await _wait_for_turn(ports, spec, acquisition):
                raise _timed_out(ports, spec, acquisition, None)
            sent = ports.clock.now()
        acquisition.token = ports.entropy.token()
        if spec.fair:
            acquisition.ticket = ports.entropy.token()
        result, now = await _contend(ports, spec, acquisition, sent)
        if acquisition.watch is not None:
            await acquisition.watch.close()
        if ARMED:
            await areach("flow.acquire.granted")
        ports.observer.waits_no_more(acquisition)
        _measure_wait(ports, spec, acquisition, MeasuredOutcome.DEGRADED if result.grant is None else _GRANTED, now)
        return result  # noqa: TRY300 - until it is returned it can be interrupted
    except BaseException as error:
        ports.observer.waits_no_more(acquisition)
        _measure_wait(ports, spec, acquisition, _outcome(error))
        await _withdraw(ports, spec, acquisition, error)
        raise


async def _wait_for_turn(ports: Ports, spec: LockSpec, acquisition: _Acquisition) -> bool:
    """Wait for the local mutex, which another caller has. False: the deadline has passed.

    The holder in this process may have lost the key without knowing it: an operator broke the lock, or the store was
    emptied. Other processes see a free key then, and so must this one. So a caller that does not wait asks the store
    about the holder, and of those who wait the first one does, now and then.
    """
    entry = acquisition.entry
    unlimited = acquisition.timeout_ns is None
    if acquisition.timeout_ns == 0 or (unlimited and _waits_for_itself(ports, spec, entry)):
        await _ask_for_the_holder(ports, spec, acquisition)
        if await entry.enter(0):
            return True
        if unlimited and _waits_for_itself(ports, spec, entry):
            raise _already_held(spec)
    pause_ns = TRUSTED_NS
    while True:
        left_ns = acquisition.left_ns(ports.clock.now())
        if await entry.enter(pause_ns if left_ns is None else min(pause_ns, left_ns)):
            return True
        if acquisition.late(ports.clock.now()):
            return False
        if entry.next:
            await _ask_for_the_holder(ports, spec, acquisition)
        pause_ns = ASK_AGAIN_NS


async def _ask_for_the_holder(ports: Ports, spec: LockSpec, acquisition: _Acquisition) -> None:
    """End the lease that this process holds if the store has another holder of the key, or none.

    A store that does not answer soon leaves things as they are: the renewal finds out later.
    """
    inside = ports.runtime.mutexes.inside(spec.key)
    held = None if inside is None else inside.held
    if held is None or not held.current().live or held.grant is None or ports.breaker.open:
        return
    left_ns = acquisition.left_ns(ports.clock.now()) or FAIR_REQUEST_NS
    if left_ns < LEAST_REQUEST_NS:
        return
    mark = fingerprint(held.grant.token)
    try:
        found = await ports.store.inspect(spec.key, min(left_ns, FAIR_REQUEST_NS, ports.request_timeout_ns))
    except BackendError:
        return
    if found is None or found.fingerprint != mark:
        held.end(Event.REFUSED)


def _waits_for_itself(ports: Ports, spec: LockSpec, entry: MutexEntry) -> bool:
    """Whether the caller itself holds the lock, with a lease that ends only when it is released."""
    inside = ports.runtime.mutexes.inside(spec.key)
    if inside is None or entry.caller is None or inside.caller != entry.caller:
        return False
    return inside.held is None or not inside.held.runs_out


def _already_held(spec: LockSpec) -> AlreadyHeld:
    return AlreadyHeld(
        f"{noun(spec.family)} already held: {spec.key} is held by this same thread or task ({spec.owner}), which would "
        "wait for itself forever; use the lease that it has, or release that first. If another thread or task releases "
        "it, call lease.hand_over() before you pass it on; or give acquire() a timeout",
        key=spec.key,
        holder=spec.owner,
    )


def _measure_wait(
    ports: Ports, spec: LockSpec, acquisition: _Acquisition, outcome: MeasuredOutcome, now: Instant | None = None
) -> None:
    """Measure the wait once. A caller that is interrupted after the grant has already been counted as granted."""
    if not acquisition.measured:
        acquisition.measured = True
        waited_ns = (now or ports.clock.now()).mono - acquisition.came.mono
        ports.observer.measured(_WAIT, spec.family, outcome, waited_ns)


def _outcome(error: BaseException) -> MeasuredOutcome:
    if isinstance(error, AcquireTimeout):
        return MeasuredOutcome.BUSY
    return MeasuredOutcome.FAILED if isinstance(error, BackendError | PolicyDenied) else MeasuredOutcome.GIVEN_UP


async def _contend(
    ports: Ports, spec: LockSpec, acquisition: _Acquisition, sent: Instant
) -> tuple[AcquireResult, Instant]:
    """Ask, sleep, ask again, until the caller's deadline. Returns what was got, and when."""
    entry, waiter = acquisition.entry, _FIRST
    busy: Busy | None = None  # the last answer of the store
    pretended = _pretended(ports, spec)
    while True:  # ends with a grant, an error, or the deadline
        if ports.runtime.mutexes.closed:
            raise Closed
        limit = _request_limit_ns(acquisition, sent)
        holder: int | None = None
        error: BackendError | None = None
        try:
            if pretended is not None:
                first, pretended = pretended, None
                raise first
            entry.asked = acquisition.token
            answer, sent, now = await try_once(ports, spec, acquisition.token, sent, acquisition.ticket, limit)
        except BackendError as raised:
            error = raised
            await _undo_unknown(ports, spec, acquisition, error)
            now = ports.clock.now()
            if busy is not None and _hurried(limit) and acquisition.late(now):
                raise _timed_out(ports, spec, acquisition, busy) from error  # it is busy, as far as is known
            mode = ports.policy.on_error(spec.risk)
            if mode is not OnError.WAIT or isinstance(error, Misconfigured):
                return _without_store(ports, spec, mode, entry, error), now
            # A clean-up of the old token may still be under way, and would release a lease acquired under it.
            acquisition.token = ports.entropy.token()
        else:
            if isinstance(answer, Grant):
                result = AcquireResult(acquisition.token, answer, sent, entry, None, acquisition.contested)
                return result, now
            _found_busy(ports, spec, acquisition, answer)
            busy, holder = answer, answer.remaining_ns
        if acquisition.late(now):
            raise _timed_out(ports, spec, acquisition, error or busy)
        if error is None and acquisition.watch is None and ports.store.capabilities.wakeups:
            acquisition.watch = await _listen(ports, spec, acquisition)
            if acquisition.watch is not None:
                sent = ports.clock.now()
                continue  # the lock may have been released before we listened: ask once more before sleeping
        left = acquisition.left_ns(ports.clock.now())
        waiter, asleep = pause(waiter, spec.retry, holder, left, acquisition.watch is not None, ports.entropy.below)
        await _sleep(ports, acquisition.watch, asleep)
        sent = ports.clock.now()


def _found_busy(ports: Ports, spec: LockSpec, acquisition: _Acquisition, answer: Busy) -> None:
    acquisition.entry.asked = None
    acquisition.contested |= spec.fair and (answer.ahead > 0 or answer.owner != spec.owner)
    if answer.spent:
        acquisition.token = ports.entropy.token()
    note(ports, spec, EventKind.BUSY, detail=answer.owner or "")


def _request_limit_ns(acquisition: _Acquisition, now: Instant) -> int | None:
    """How long the next request may take. None: as long as any request, because the caller has set no limit."""
    if not acquisition.timeout_ns:
        return None
    left = acquisition.left_ns(now)
    return None if left is None else max(left, LEAST_REQUEST_NS)


async def _undo_unknown(ports: Ports, spec: LockSpec, acquisition: _Acquisition, error: BackendError) -> None:
    """A request failed. Undo it in the background, unless it certainly had no effect."""
    if acquisition.entry.asked is not None and not isinstance(error, Unavailable | Misconfigured):
        late = acquisition.timeout_ns != 0 and acquisition.late(ports.clock.now())
        await undo(ports, spec, acquisition.token, 0 if late else CLEANUP_WAIT_NS)
    acquisition.entry.asked = None


async def _withdraw(ports: Ports, spec: LockSpec, acquisition: _Acquisition, error: BaseException) -> None:
    """A waiter gives up. Its watch, its ticket and even its grant are cleaned up at the store in the background.

    After a store error the caller does not wait for that: the store has just kept it waiting.
    """
    failed = isinstance(error, BackendError | PolicyDenied) or isinstance(error.__cause__, BackendError)
    wait_ns = 0 if failed else CLEANUP_WAIT_NS
    queued = acquisition.watch is not None or acquisition.ticket is not None
    if acquisition.entry.asked is not None:
        await undo(ports, spec, acquisition.token, wait_ns, acquisition)
        acquisition.entry.asked = None
    elif queued:
        await ports.runtime.finish(_leave_queue(ports, spec, acquisition), wait_ns)


async def take_back(ports: Ports, spec: LockSpec, entry: MutexEntry) -> None:
    """Undo the grant of a caller that was interrupted before it got the lease, and leave the entry."""
    try:
        if entry.asked is not None:
            await undo(ports, spec, entry.asked, CLEANUP_WAIT_NS)
    finally:
        entry.leave()


async def _leave_queue(ports: Ports, spec: LockSpec, acquisition: _Acquisition) -> None:
    if acquisition.watch is not None:
        await acquisition.watch.close()
    if acquisition.ticket is not None:
        await _leave(ports, spec, acquisition.ticket)


async def _listen(ports: Ports, spec: LockSpec, acquisition: _Acquisition) -> Watch | None:
    """Subscribe to releases of the key. Notifications only speed up the wait: without them the waiter polls."""
    left = acquisition.left_ns(ports.clock.now())
    limit = ports.request_timeout_ns if left is None else min(ports.request_timeout_ns, left)
    try:
        if ARMED:
            await areach("flow.acquire.listen")
        return await ports.store.watch(spec.key, limit)
    except BackendError:
        return None


async def _sleep(ports: Ports, watch: Watch | None, ns: int) -> None:
    if ARMED:
        await areach("flow.acquire.sleep")
    if watch is None:
        await ports.runtime.sleep(ns)
    else:
        await watch.wait(ns)


async def _leave(ports: Ports, spec: LockSpec, ticket: str) -> None:
    try:
        await ports.store.leave(spec.key, ticket, ports.request_timeout_ns)
    except BadInput:
        return  # as in `undo`
    except BackendError as error:
        note(ports, spec, EventKind.FAILED, detail=f"the ticket was not released, it will expire: {error}", ok=False)


def _timed_out(
    ports: Ports, spec: LockSpec, acquisition: _Acquisition, answer: Busy | BackendError | None
) -> AcquireTimeout | BackendError | PolicyDenied:
    """The wait has ended: busy, or, under the `wait` policy, the store never came back."""
    waited = elapsed_ns(acquisition.came, ports.clock.now()) / NS
    note(ports, spec, EventKind.TIMED_OUT, detail=f"waited {waited:.3f} s", ok=False)
    if isinstance(answer, BackendError):
        return answer
    holder = answer.owner if answer is not None else "another holder in this process"
    left = answer.remaining_ns if answer is not None else None
    return AcquireTimeout(
        f"{noun(spec.family)} busy: {spec.key} is held by {holder or 'another holder'}; waited {waited:.3g} s",
        key=spec.key,
        holder=holder,
        retry_after=(spec.retry.longest_ns() if left is None else left) / NS,
        remaining=None if left is None else left / NS,
    )
