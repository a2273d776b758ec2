"""The reaction to a store that cannot be reached, decided per risk class before an incident and not during it.

A lock without a risk class always fails closed. A lock with one follows the policy, which is data: it can be replaced
while the process runs, and every use of anything but "closed" is counted, logged and visible on the lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from holdfast.core.duration_text import parse_seconds
from holdfast.errors import BadInput
from holdfast.types import NS, check_label, duration_ns

BUSY_JITTER_MAX_NS: Final = 60 * NS


class OnError(StrEnum):
    """The three reactions to a store that does not answer."""

    FAIL_CLOSED = "fail_closed"  # raise; nothing runs without the lock
    FAIL_OPEN = "fail_open"  # run under the local lock only, with a lease that says so
    WAIT = "wait"  # keep trying until the store is back or the caller's timeout is over


@dataclass(frozen=True, slots=True)
class Policy:
    """Risk class to behavior. Classes that are not named fail closed."""

    classes: Mapping[str, OnError] = field(default_factory=lambda: MappingProxyType({}))
    busy_jitter: float | None = None  # of a plane's busy retries, in seconds; None: the file does not set it

    def on_error(self, risk: str | None) -> OnError:
        """What a lock of this risk class does when the store fails."""
        return OnError.FAIL_CLOSED if risk is None else self.classes.get(risk, OnError.FAIL_CLOSED)

    def with_class(self, risk: str, mode: OnError | str) -> Policy:
        """A copy in which one class behaves differently."""
        named = {check_label("risk", risk): parse_mode(f"risk.{risk}", mode)}
        return replace(self, classes=MappingProxyType({**self.classes, **named}))


def parse_mode(where: str, mode: object) -> OnError:
    """A behavior by name, or `BadInput` that lists the names there are."""
    try:
        return OnError(mode)  # type: ignore[arg-type]  # anything may arrive here; the enum refuses what it is not
    except ValueError:
        raise BadInput(where, f"{mode!r} is not an error policy", f"use one of {', '.join(OnError)}") from None


def parse_policy(table: object, where: str = "policy") -> Policy:
    """A policy from a mapping such as `{"low": "fail_open"}` (or a file's `[risk]` table)."""
    if isinstance(table, Policy):
        return table
    if not isinstance(table, Mapping):
        raise BadInput(where, f"{type(table).__name__} is not a table", "give risk classes and their behavior")
    classes = {
        check_label(f"{where} risk class", risk): parse_mode(f"{where}.{risk}", mode) for risk, mode in table.items()
    }
    return Policy(MappingProxyType(classes))


def parse_busy_jitter(table: object, where: str) -> float | None:
    """The seconds of `busy_jitter` in a file's `[scheduler]` table, if it is there; `BadInput` for any other key."""
    if not isinstance(table, Mapping):
        raise BadInput(f"{where} [scheduler]", f"{type(table).__name__} is not a table", "write [scheduler]")
    if other := [key for key in table if key != "busy_jitter"]:
        fix = "only busy_jitter is switched at run time; put the others into the settings"
        raise BadInput(f"{where} [scheduler]", f"has {other[0]!r:.60}", fix)
    value = table.get("busy_jitter")
    if value is None:
        return None
    name = f"{where} scheduler.busy_jitter"
    seconds = parse_seconds(name, value) if isinstance(value, str) else value
    return duration_ns(name, seconds, high_ns=BUSY_JITTER_MAX_NS) / NS
