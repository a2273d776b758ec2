"""The settings of a lock, checked. Settings that cannot be safe are refused here.

`describe` makes a lock spec from them. `NamedLock` is the common part of both `Lock` classes. Nothing here waits or
talks to a store.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypedDict, cast

from holdfast.core import backoff
from holdfast.core.backoff import Backoff
from holdfast.core.lease import timing
from holdfast.core.lease.spec import LockSpec, OnLoss
from holdfast.core.ports import Capabilities
from holdfast.errors import BadInput, Misconfigured
from holdfast.types import NS, Duration, Guarantee, check_key, check_label, duration_ns


class UsageWarning(UserWarning):
    """A call that is allowed, but probably does not do what its author meant."""


class LockSettings(TypedDict, total=False):
    """What `lock()` and `exclusive()` take besides a name and a risk class. Durations are seconds or `timedelta`.

    ttl: how long the store keeps the key without a renewal (30 s).
    timeout: how long `with` waits (None: forever).
    family: what kind of lock it is; the unit of defaults, metrics and tuning ("default").
    retry: the back-off between attempts (full jitter, capped at a second and at ttl / 3).
    fair: first come, first served among processes, by leased tickets (False).
    auto_renew: whether the lease is renewed while it is held (True).
    renew_every: how often (ttl / 3).
    renew_deadline: age of the last confirmation at which the lease is abandoned (ttl - drift - guard).
    failures: how many failed renewal periods in a row abandon it (3).
    max_hold: the longest it may be held in all, renewed or not (no limit).
    stall_after: how long the work may go without `progress()` before the lease is given up (no limit).
    at_least: how long the key stays taken, even if it is released sooner (0).
    early_warning: how long before the deadline `on_warning` is called (half-way between missed renewal and loss).
    on_lost: called with the lease when it is lost, on a thread of its own (async: on the event loop).
    on_warning: called with the lease at the early warning, likewise.
    on_loss: what a loss does to an `async with` body: "cancel" it, or only "flag" it ("cancel").
    takeover_slo: how soon after a crash another must be able to take over; refused if the ttl cannot meet it.
    median_hold: how long the lock is usually held; refused if the retry delay is shorter.
    guarantee: the least that the store must promise ("efficiency_only").
    """

    ttl: Duration
    timeout: Duration | None
    family: str
    retry: Backoff | None
    fair: bool
    auto_renew: bool
    renew_every: Duration | None
    renew_deadline: Duration | None
    failures: int
    max_hold: Duration | None
    stall_after: Duration | None
    at_least: Duration
    early_warning: Duration | None
    on_lost: Callable[[Any], object] | None
    on_warning: Callable[[Any], object] | None
    on_loss: OnLoss
    takeover_slo: Duration | None
    median_hold: Duration | None
    guarantee: str


_TIMING = (
    "ttl",
    "auto_renew",
    "renew_every",
    "renew_deadline",
    "failures",
    "max_hold",
    "stall_after",
    "at_least",
    "early_warning",
    "takeover_slo",
)


_OF_REDIS_PY = {"blocking", "blocking_timeout", "lock_class", "raise_on_release_error", "sleep", "thread_local"}


def renamed(spec: LockSpec, name: str) -> LockSpec:
    """The same lock under another name. Settings that were checked once are not checked again."""
    return LockSpec(
        check_key("name", name),
        spec.family,
        spec.owner,
        spec.risk,
        spec.timing,
        spec.retry,
        spec.fair,
        spec.timeout_ns,
        spec.on_lost,
        spec.on_warning,
        spec.on_loss,
        spec.guarantee,
        spec.detached,
    )


def describe(name: str, risk: str | None, settings: LockSettings, owner: str, capabilities: Capabilities) -> LockSpec:
    """Check a name and its settings; refuse what is wrong or cannot be safe.

    Programs describe the same kind of lock again and again under other names, so checked settings are cached.
    """
    if "timeout" in settings and "ttl" not in settings and timeout_ns(settings["timeout"]) is not None:
        _warn_of_timeout()
    if "on_lost" in settings or "on_warning" in settings:  # callbacks must not be kept alive
        return _described(name, risk, settings, owner, capabilities)
    # With their types: 1, 1.0 and True are equal, but not all of them are valid everywhere.
    given = tuple((field, type(value), value) for field, value in settings.items())
    try:
        model = _model(risk, given, owner, capabilities)
    except TypeError:  # a value that cannot be remembered
        return _described(name, risk, settings, owner, capabilities)
    return renamed(model, name)


_warned: set[str] = set()


def _warn_of_timeout() -> None:
    """Once in a process: the redis-py lock calls `timeout` what is `ttl` here."""
    if not _warned:
        _warned.add("timeout")
        warnings.warn(
            "lock(timeout=…) without ttl: timeout is how long `with` waits for the lock, and the lease has the default "
            "ttl of 30 s. In redis-py, timeout is what ttl is here: give ttl=… for that. To limit the wait, give both",
            UsageWarning,
            stacklevel=5,
        )


@lru_cache(maxsize=256)
def _model(
    risk: str | None, given: tuple[tuple[str, type, Any], ...], owner: str, capabilities: Capabilities
) -> LockSpec:
    settings = cast("LockSettings", {field: value for field, _, value in given})
    return _described("model", risk, settings, owner, capabilities)


def _described(name: str, risk: str | None, settings: LockSettings, owner: str, capabilities: Capabilities) -> LockSpec:
    unknown = settings.keys() - LockSettings.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(LockSettings.__annotations__))
        if unknown & _OF_REDIS_PY:
            known += ". What redis-py calls timeout is ttl here, its blocking_timeout is timeout, its sleep is retry"
        raise BadInput(", ".join(sorted(unknown)), "is not a setting of a lock", f"there are: {known}")
    given: Mapping[str, Any] = settings
    chosen = {field: given[field] for field in _TIMING if field in given}
    if not capabilities.renewal:
        chosen["auto_renew"] = False
    _flag("auto_renew", settings.get("auto_renew", True))
    times = timing.settle(**chosen)
    retry = settings.get("retry")
    if retry is None:
        retry = backoff.for_ttl(times.ttl_ns)
    if not isinstance(retry, Backoff):
        raise BadInput(
            "retry", f"{retry!r} is not a back-off", "use holdfast.backoff.fixed(), jittered(), exponential(), …"
        )
    median = settings.get("median_hold")
    backoff.check_against(retry, times.ttl_ns, None if median is None else duration_ns("median_hold", median))
    fair = _flag("fair", settings.get("fair", False))
    if fair and not capabilities.fair:
        raise Misconfigured(f"fair: {capabilities.engine} keeps no queue; use fair=False or another store")
    demanded = checked_guarantee(settings.get("guarantee", Guarantee.EFFICIENCY_ONLY), capabilities)
    on_loss = settings.get("on_loss", "cancel")
    if on_loss not in ("cancel", "flag"):
        raise BadInput("on_loss", f"{on_loss!r} is not a reaction", 'use "cancel" or "flag"')
    timeout = settings.get("timeout")
    return LockSpec(
        key=check_key("name", name),
        family=check_label("family", settings.get("family", "default")),
        owner=owner,
        risk=None if risk is None else check_label("risk", risk),
        timing=times,
        retry=retry,
        fair=fair,
        timeout_ns=timeout_ns(timeout),
        on_lost=_callable("on_lost", settings.get("on_lost")),
        on_warning=_callable("on_warning", settings.get("on_warning")),
        on_loss=on_loss,
        guarantee=demanded,
    )


def timeout_ns(timeout: Duration | None) -> int | None:
    """How long to wait, in nanoseconds. None is forever; -1 too, as in `threading.Lock.acquire`."""
    if timeout is None or timeout == -1:
        return None
    return duration_ns("timeout", timeout)


def checked_guarantee(wanted: str, capabilities: Capabilities) -> Guarantee:
    """A guarantee that this engine can promise."""
    try:
        demanded = Guarantee(wanted)
    except ValueError:
        raise BadInput("guarantee", f"{wanted!r} is unknown", f"use one of {', '.join(Guarantee)}") from None
    if not capabilities.guarantee.covers(demanded):
        raise Misconfigured(
            f"guarantee: {capabilities.engine} promises {capabilities.guarantee}, and {demanded} is demanded"
        )
    return demanded


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadInput(field, f"{value!r} is neither True nor False", "give one of them")
    return value


def _callable(field: str, value: object) -> Callable[[Any], object] | None:
    if value is not None and not callable(value):
        raise BadInput(field, f"{value!r} cannot be called", "give a function that takes the lease")
    return value


class NamedLock:
    """The common part of both `Lock` classes: the name and the settings."""

    __slots__ = ("_spec",)

    def __init__(self, spec: LockSpec) -> None:
        self._spec = spec

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._spec.key

    @property
    def ttl(self) -> float:
        """How long the store keeps the key without a renewal, in seconds."""
        return self._spec.timing.ttl_ns / NS

    @property
    def family(self) -> str:
        """The family of the lock."""
        return self._spec.family

    @property
    def risk(self) -> str | None:
        """The risk class that decides what a store error means; None always fails closed."""
        return self._spec.risk

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} ttl={self.ttl:g} family={self.family} risk={self.risk}>"
