"""What both colours of `connect` do, and what both colours of `Locks` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.ports import Capabilities, Observer
from holdfast.errors import Closed
from holdfast.runtime.concurrency_check import check_threads_are_real
from holdfast.runtime.lease_manager import Health, LeaseManager, make_manager
from holdfast.runtime.policy_switch import ExerciseSwitch, PolicySwitch
from holdfast.stores.registry import Engine, open_engine
from holdfast.types import Duration


class Reconnection(NamedTuple):
    """What another process needs to reach the same locks."""

    url: str | None
    options: tuple[tuple[str, Any], ...]


class Opening(NamedTuple):
    """What a `Locks` is made of."""

    engine: Engine
    manager: LeaseManager
    reconnection: Reconnection


def open_locks(
    url: str | None,
    *,
    service: str | None,
    instance: str | None,
    policy: Mapping[str, str] | None,
    policy_file: str | Path | None,
    observers: Sequence[Observer],
    request_timeout: Duration,
) -> Opening:
    """Open the engine that a URL means, and put together what its leases share."""
    check_threads_are_real()
    engine = open_engine(url)
    manager = make_manager(
        engine.blocking,
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
    }
    return Opening(engine, manager, Reconnection(url, tuple(options.items())))


class AnyLocks:
    """The locks of one store: what can be said of them without asking it."""

    def __init__(self, engine: Engine, manager: LeaseManager, reconnection: Reconnection | None) -> None:
        self.engine = engine
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
        """Whether leases are really being looked after: false when renewal is behind or the store is failing."""
        return self.manager.health_report()

    def open_manager(self) -> LeaseManager:
        """The household, if this `Locks` is open; an error that says so otherwise."""
        if self._closed:
            raise Closed
        return self.manager

    def reconnection(self) -> Reconnection:
        """What a pickled lock takes along. Private stores cannot be reached from elsewhere and are refused."""
        if self._reconnection is None or not self.capabilities.shared:
            raise TypeError("locks of a private store cannot be pickled; connect to one that processes share, by URL")
        return self._reconnection

    def __repr__(self) -> str:
        return f"<Locks {self.capabilities.engine} owner={self.manager.owner}{' closed' if self._closed else ''}>"
