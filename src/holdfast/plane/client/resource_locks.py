"""Resource locks for applications: `client.resource("gpu-0")` acquires, renews and releases one.

    async with client.resource("gpu-0", ttl=30, timeout=60) as lease:
        await use_gpu(fence=lease.fence)
        lease.ensure_held()

Promises:

- The lease is renewed at a third of its TTL while it is held. `held`, `lost` and `ensure_held()` judge at the moment of
  the call, without I/O: validity counts from before the request was sent, minus the safety margin of a lease.
- The token is made up here, so a request whose answer was lost is repeated and gets the same grant. If `acquire` fails
  or is cancelled, the grant is released in the background, or expires with its TTL.
- The end of the block releases. If the lease was lost inside the block, it raises `LeaseLost`, or adds a note to the
  error that ends the block.

Does not promise to interrupt the block. Renewals run on the event loop of the client: a loop that is blocked for longer
than the TTL loses the lease. (The loop of a blocking client is in a thread of its own.)

Clock: all three clocks of the host, the most pessimistic, for validity; the loop's for pauses.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final

from holdfast.core.lease.timing import drift_ns, guard_ns
from holdfast.errors import AcquireTimeout, BadInput, HoldfastError, LeaseLost, LockBusy, NotOwner
from holdfast.plane.resources.model import (
    ResourceMode,
    check_mode,
    check_owner,
    check_resource,
    check_ttl,
)
from holdfast.runtime.system import SystemClock
from holdfast.types import NS, Duration, Instant, duration_ns, elapsed_ns

if TYPE_CHECKING:
    from holdfast.plane.client.client import Client
    from holdfast.plane.client.transport import Transport

WAIT_NS: Final = 20 * NS  # of one request; a longer wait is several requests
RELEASE_S: Final = 5.0  # for the release of a grant whose acquisition failed
AGAIN_S: Final = 0.2  # between attempts to renew

_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A resource to acquire, with the token that proves the grant."""

    resource: str
    owner: str
    mode: ResourceMode
    ttl_ns: int
    token: str = field(repr=False)


class ResourceLoss:
    """Whether and why a resource is lost."""

    def __init__(self, lease: ResourceLease) -> None:
        self._lease = lease
        self.event = asyncio.Event()

    def is_set(self) -> bool:
        """Whether the resource is lost, now. One that was released is not lost."""
        return self._lease.current_loss() is not None

    @property
    def reason(self) -> str | None:
        """Why it was lost: `expired` (not confirmed in time) or `stolen` (released by force)."""
        return self._lease.current_loss()

    async def wait(self) -> None:
        """Wait until the resource is lost or released."""
        await self.event.wait()

    def __bool__(self) -> bool:
        return self.is_set()


class ResourceLease:
    """A held resource. Made by `ResourceLock.acquire`. Everything except `release` is local."""

    def __init__(self, client: Client, claim: ResourceClaim, fence: int, sent: Instant) -> None:
        self._client = client
        self._claim = claim
        self._confirmed = sent
        self._reason: str | None = None
        self._released = False
        self._usable_ns = claim.ttl_ns - drift_ns(claim.ttl_ns) - guard_ns(claim.ttl_ns)
        self.fence = fence
        self.lost = ResourceLoss(self)
        self._renewing = asyncio.create_task(self._renew_on(), name=f"renew resource {claim.resource}")

    @property
    def key(self) -> str:
        """The name of the resource."""
        return self._claim.resource

    @property
    def owner(self) -> str:
        """The label of the holder, for people."""
        return self._claim.owner

    @property
    def mode(self) -> str:
        """`exclusive` or `shared`."""
        return str(self._claim.mode)

    @property
    def held(self) -> bool:
        """Whether the resource is held, now."""
        return not self._released and self.current_loss() is None

    def remaining(self) -> float:
        """How many seconds it is held without another renewal. 0.0 when it is not held."""
        return self._remaining_ns() / NS if self.held else 0.0

    def ensure_held(self, min_remaining: Duration = 0) -> None:
        """Return if the resource is held and has at least `min_remaining` left; raise `LeaseLost` otherwise."""
        least = duration_ns("min_remaining", min_remaining)
        reason = "released" if self._released else self.current_loss()
        if reason is not None:
            raise self._error(f"resource not held: {self.key} ({reason})", reason)
        if self._remaining_ns() < least:
            raise self._error(f"resource about to be lost: {self.key} has less than {least / NS:g} s left", "expired")

    async def release(self) -> bool:
        """Release the resource. False: it was lost before. A second call returns True and does nothing."""
        if self._released:
            return True
        lost = self.current_loss()
        await self._end()
        try:
            await self._client.tried(lambda transport: transport.release_resource(self._claim))
        except NotOwner:
            self._reason = lost or "stolen"
            return False
        return lost is None

    async def release_at_close(self) -> None:
        """Release it within a time limit, when its client closes; else it expires."""
        async with asyncio.timeout(RELEASE_S):
            await self.release()

    def current_loss(self) -> str | None:
        """Why it is lost, as far as is known now; None: it is not."""
        if self._reason is None and not self._released and self._remaining_ns() <= 0:
            self._reason = "expired"  # for good, even if a late answer confirms it
        return self._reason

    async def leave(self, error: BaseException | None) -> None:
        """Release at the end of a block, and report a loss."""
        reason = self.current_loss()
        try:
            kept = await self.release()
        except HoldfastError as problem:  # it expires with its TTL
            if error is None and reason is None:
                raise
            kept = reason is None
            if error is not None:
                error.add_note(f"besides: {problem}")
        if kept:
            return
        lost = self._error(f"resource lost: {self.key} ({self._reason})", self._reason or "expired")
        if error is None:
            raise lost
        if not (isinstance(error, LeaseLost) and error.key == self.key):
            error.add_note(f"besides: {lost}")

    async def _renew_on(self) -> None:
        pause_s = self._claim.ttl_ns / 3 / NS
        while self.held:
            await asyncio.sleep(max(0.0, min(pause_s, self._remaining_ns() / NS)))
            sent, left_s = _CLOCK.now(), self._remaining_ns() / NS
            if left_s <= 0:
                break
            try:
                async with asyncio.timeout(left_s):
                    await self._client.once(lambda transport: transport.renew_resource(self._claim))
            except NotOwner:
                self._reason = self._reason or "stolen"
            except (HoldfastError, TimeoutError):  # repeated until the lease expires
                pause_s = min(AGAIN_S, self._claim.ttl_ns / 20 / NS)
            else:
                self._confirmed = sent
                pause_s = self._claim.ttl_ns / 3 / NS
        self.lost.event.set()

    async def _end(self) -> None:
        self._released = True
        self.lost.event.set()
        self._client.resources.discard(self)
        self._renewing.cancel()
        await asyncio.wait((self._renewing,))

    def _remaining_ns(self) -> int:
        return self._usable_ns - elapsed_ns(self._confirmed, _CLOCK.now())

    def _error(self, text: str, reason: str) -> LeaseLost:
        return LeaseLost(text, key=self.key, reason=reason, fence=self.fence)

    def __repr__(self) -> str:
        return f"<ResourceLease {self.key!r} fence={self.fence} {'held' if self.held else 'not held'}>"


class ResourceLock:
    """A resource of a plane. Nothing is sent until it is acquired. Can be acquired any number of times."""

    def __init__(
        self,
        client: Client,
        resource: str,
        *,
        mode: ResourceMode | str,
        ttl: Duration,
        timeout: Duration | None,
        owner: str,
    ) -> None:
        self._client = client
        self._resource = check_resource(resource)
        self._mode = check_mode(mode)
        self._ttl_ns = check_ttl(ttl)
        self._timeout_ns = _checked_timeout(timeout)
        self._owner = check_owner(owner)
        self._entered: list[ResourceLease] = []

    async def acquire(self, timeout: Duration | None = None) -> ResourceLease:
        """Wait for the resource, and hold it. `AcquireTimeout`: it stayed busy. None: the timeout of the lock."""
        limit_ns = self._timeout_ns if timeout is None else _checked_timeout(timeout)
        return await self._acquire(limit_ns)

    async def try_acquire(self) -> ResourceLease | None:
        """Hold the resource if it is free now; None: it is busy."""
        try:
            return await self._acquire(0)
        except LockBusy:
            return None

    async def _acquire(self, limit_ns: int | None) -> ResourceLease:
        claim = ResourceClaim(self._resource, self._owner, self._mode, self._ttl_ns, self._client.new_token())
        loop = asyncio.get_running_loop()
        ends = None if limit_ns is None else loop.time() + limit_ns / NS
        try:
            while True:  # ends with a grant, or when the time is over
                left_ns = WAIT_NS if ends is None else max(0, int((ends - loop.time()) * NS))
                try:
                    fence, sent = await self._ask(claim, min(left_ns, WAIT_NS))
                except LockBusy as busy:
                    if ends is None or loop.time() < ends:
                        continue
                    raise AcquireTimeout(str(busy), key=claim.resource, holder=busy.holder) from None
                except NotOwner:  # it has expired between the grant and the renewal that confirms it
                    continue
                break
        except BaseException as error:
            if not isinstance(error, LockBusy | BadInput):
                self._client.in_background(self._forget(claim))
            raise
        lease = ResourceLease(self._client, claim, fence, sent)
        self._client.resources.add(lease)
        return lease

    async def _ask(self, claim: ResourceClaim, wait_ns: int) -> tuple[int, Instant]:
        """The fence of a grant, and a moment before the request from which its TTL counts."""
        sent = _CLOCK.now()

        async def acquire(transport: Transport) -> int:
            nonlocal sent
            sent = _CLOCK.now()
            return await transport.acquire_resource(claim, wait_ns)

        fence = await self._client.tried(acquire)
        if elapsed_ns(sent, _CLOCK.now()) > claim.ttl_ns // 3:  # the plane has waited; its TTL began later
            sent = _CLOCK.now()
            await self._client.once(lambda transport: transport.renew_resource(claim))
        return fence, sent

    async def _forget(self, claim: ResourceClaim) -> None:
        """Release what may have been granted without an answer."""
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._client.once(lambda transport: transport.release_resource(claim))

    async def __aenter__(self) -> ResourceLease:
        lease = await self.acquire()
        self._entered.append(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().leave(error)

    def __repr__(self) -> str:
        return f"<ResourceLock {self._resource!r}>"


def _checked_timeout(timeout: Duration | None) -> int | None:
    return None if timeout is None else duration_ns("timeout", timeout)
