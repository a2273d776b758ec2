"""The common part of both `connect` functions and of both `Locks` classes.

Promises: `connect` raises `Misconfigured` in a process whose `socket` or `thread` modules were replaced by gevent or
eventlet (eventlet's `select` too), and `holdfast.aio` raises it in a task of trio. The message names the fix.

The reasons: a real thread renews leases, so that a busy program keeps them. A patched thread is a greenlet, which does
not run while another greenlet computes, and the lease is lost. Patched sockets ignore the time limits that the kernel
keeps for the Redis driver. Eventlet's `select` has no `poll`, by which waiters and the Postgres driver wait; gevent's
has one. And `holdfast.aio` awaits futures of asyncio, which trio cannot.

Does not promise to notice a program that is patched after it has connected.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import Capabilities, Observer
from holdfast.errors import BadInput, Closed, Misconfigured
from holdfast.leases.lock_spec import LockSettings, checked_guarantee, describe
from holdfast.runtime.lease_manager import LeaseManager, make_manager
from holdfast.runtime.policy_switch import ExerciseSwitch, PolicySwitch
from holdfast.runtime.statistics import Health
from holdfast.stores.registry import Engine, check_engine, open_client, open_engine
from holdfast.types import Duration, Guarantee


class _Patcher(NamedTuple):
    """A library that replaces modules of the standard library in a whole process."""

    name: str
    module: str
    question: str  # the function of that module which knows
    needed: tuple[str, ...]  # its names for what Holdfast needs
    fix: str


_PATCHERS: Final = (
    _Patcher(
        *("gevent", "gevent.monkey", "is_module_patched", ("socket", "threading")),
        "monkey.patch_all(socket=False, thread=False)",
    ),
    _Patcher(
        *("eventlet", "eventlet.patcher", "is_monkey_patched", ("socket", "thread", "select")),
        "eventlet.monkey_patch(socket=False, thread=False, select=False)",
    ),
)


def check_threads_are_real() -> None:
    """Raise `Misconfigured` if gevent or eventlet has replaced sockets or threads in this process."""
    for name, module, question, needed, fix in _PATCHERS:
        is_patched = getattr(sys.modules.get(module), question, None)
        patched = [] if is_patched is None else [each for each in needed if is_patched(each)]
        if patched:
            raise Misconfigured(
                f"{name} has replaced {', '.join(patched)} in this process, and Holdfast needs real ones: its time "
                f"limits and the thread that renews leases would not work. Do not patch them "
                f"({fix}), or use Holdfast in a process without {name}"
            )


def check_tasks_are_asyncio() -> None:
    """Raise `Misconfigured` in a task of trio."""
    lowlevel = sys.modules.get("trio.lowlevel")
    if lowlevel is None:
        return
    try:
        lowlevel.current_trio_token()
    except RuntimeError:
        return  # no trio here
    raise Misconfigured(
        "holdfast.aio needs asyncio, and this task runs under trio. With anyio, use its asyncio backend: "
        'anyio.run(main, backend="asyncio"). Under trio, use the blocking holdfast.connect() in '
        "trio.to_thread.run_sync()"
    )


class Reconnection(NamedTuple):
    """What another process needs to reach the same locks."""

    url: str | None
    options: tuple[tuple[str, Any], ...]


class Opening(NamedTuple):
    """What a `Locks` is made of."""

    engine: Engine
    manager: LeaseManager
    reconnection: Reconnection | None  # None: only a URL can be sent to another process
    minimum: Guarantee  # that each lock demands which names none


def open_locks(
    url: str | None,
    *,
    engine: Engine | None,
    client: object | None,
    service: str | None,
    instance: str | None,
    policy: Mapping[str, str] | None,
    policy_file: str | Path | None,
    observers: Sequence[Observer],
    request_timeout: Duration,
    guarantee: str,
) -> Opening:
    """Open the engine of a URL or of a client, or take the given one, and put together what its leases share."""
    check_threads_are_real()
    if sum(each is not None for each in (url, engine, client)) > 1:
        raise BadInput("url, engine and client", "more than one of them is given", "give one of them")
    if client is not None:
        opened = open_client(client)
    else:
        opened = open_engine(url) if engine is None else check_engine("engine", engine)
    minimum = checked_guarantee(guarantee, opened.capabilities)
    manager = make_manager(
        opened.blocking,
        service=service,
        instance=instance,
        policy=policy,
        policy_file=policy_file,
        observers=observers,
        request_timeout=request_timeout,
    )
    options = {
        "service": service,
        "policy": dict(policy or {}),
        "policy_file": policy_file,
        "request_timeout": request_timeout,
        "guarantee": str(minimum),
    }
    reconnection = Reconnection(url, tuple(options.items())) if engine is None and client is None else None
    return Opening(opened, manager, reconnection, minimum)


class AnyLocks:
    """The locks of one store: what can be said of them without asking it."""

    def __init__(
        self,
        engine: Engine,
        manager: LeaseManager,
        reconnection: Reconnection | None,
        minimum: Guarantee = Guarantee.EFFICIENCY_ONLY,
    ) -> None:
        self.engine = engine
        self._minimum = minimum
        self.manager = manager
        self._reconnection = reconnection
        self._closed = False  # by its owner
        self._ended = False  # and nothing is left of it

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do, and what it promises."""
        return self.engine.capabilities

    @property
    def policy(self) -> PolicySwitch:
        """The error policy in force; `policy.set("low", "fail_open", reason="…")` switches it at run time."""
        return self.manager.policy

    @property
    def exercise(self) -> ExerciseSwitch:
        """Walk the fallback path on purpose: `exercise.begin("workflow.run", 0.01, duration=600)`."""
        return self.manager.exercises

    def health(self) -> Health:
        """Whether leases are being renewed: false when renewal is behind or the store is failing."""
        return self.manager.health.report()

    def open_manager(self) -> LeaseManager:
        """The lease manager, if this `Locks` is open; `Closed` otherwise."""
        if self._closed:
            raise Closed
        return self.manager

    def _describe(self, name: str, risk: str | None, settings: LockSettings) -> LockSpec:
        """The checked description of a lock of this process."""
        if "guarantee" not in settings and self._minimum is not Guarantee.EFFICIENCY_ONLY:
            settings = {**settings, "guarantee": self._minimum}
        return describe(name, risk, settings, self.open_manager().owner, self.capabilities)

    def _owned(self, spec: LockSpec) -> LockSpec:
        """The spec with the owner of this process: a forked child is another owner than its parent."""
        if self._closed:
            raise Closed
        owner = self.manager.owner
        return spec if spec.owner is owner else replace(spec, owner=owner)

    def reconnection(self) -> Reconnection:
        """What a pickled lock takes along. Private stores cannot be reached from elsewhere and are refused."""
        if self._reconnection is None or not self.capabilities.shared:
            raise TypeError("locks of a private store cannot be pickled; connect to one that processes share, by URL")
        return self._reconnection

    def __repr__(self) -> str:
        return f"<Locks {self.capabilities.engine} owner={self.manager.owner}{' closed' if self._closed else ''}>"
