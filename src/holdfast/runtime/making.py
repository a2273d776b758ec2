"""Puts a household together from the public arguments of `connect`, on real clocks and real chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from holdfast.core.ports import Observer, Store
from holdfast.errors import BadInput
from holdfast.runtime.household import Household
from holdfast.runtime.pauses import garbage_collections
from holdfast.runtime.policies import policy_switch
from holdfast.runtime.system import SystemClock, SystemEntropy, this_owner
from holdfast.runtime.witness import Witness
from holdfast.types import MS, Duration, duration_ns


def make_household(
    keeper_store: Store,
    *,
    service: str | None,
    instance: str | None,
    policy: Mapping[str, str] | None,
    policy_file: str | Path | None,
    observers: Sequence[Observer],
    request_timeout: Duration,
) -> Household:
    """The shared parts of one `Locks`."""
    clock = SystemClock()
    witness = Witness(_checked(observers), clock)
    owner = partial(this_owner, service, instance)
    return Household(
        keeper_store,
        clock=clock,
        entropy=SystemEntropy(),
        witness=witness,
        policy=policy_switch(policy, policy_file, clock, witness, str(owner())),
        owner=owner,
        request_timeout_ns=duration_ns("request_timeout", request_timeout, low_ns=10 * MS, high_ns=60_000 * MS),
        collections=garbage_collections(),
    )


def _checked(observers: object) -> Sequence[Observer]:
    if not isinstance(observers, Sequence) or not all(callable(getattr(each, "note", None)) for each in observers):
        raise BadInput("observers", "is not a list of observers", "give objects with a method note(record)")
    return observers
