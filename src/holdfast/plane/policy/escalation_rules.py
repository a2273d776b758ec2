"""When running without the lock has begun to do harm: the rule by which high-risk classes stop failing open. Pure.

Two signs together, because each alone is harmless: the store is failing (locks fall back to the local one more often
than `rate` a second, over the window) and it shows (the same step completed, or the same job published, more than once,
and more often than in the window before). Then the classes that the rule names are to fail closed.

A class is judged only after it has done what it does for a whole window. So whoever decides against an escalation has
that long before the rule may speak again, and is not overruled by what was seen before.

The rule never switches back: that the store is well again does not say that the damage is understood.

Clock: the wall clock, as the counts have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.lease.error_policy import OnError
from holdfast.types import NS


@dataclass(frozen=True, slots=True)
class Rule:
    """What is too much, and for whom."""

    rate: float = 0.1  # fallbacks a second
    window_ns: int = 300 * NS
    classes: tuple[str, ...] = ("high",)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was counted in all processes: in the window, and for duplicates also in the one before it."""

    fallbacks: int  # without those of exercises
    duplicates: int
    duplicates_before: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rule says."""

    escalate: bool
    rate: float  # fallbacks a second
    because: str  # for people


def judge(rule: Rule, seen: Evidence) -> Verdict:
    """Whether there is reason to fail closed."""
    rate = seen.fallbacks * NS / rule.window_ns
    over = f"{rule.window_ns / NS:g} s"
    falling = f"{rate:.3g} fallbacks a second over {over}"
    if rate <= rule.rate:
        return Verdict(False, rate, f"{falling}, not more than {rule.rate:g}")
    doubling = f"{seen.duplicates} duplicates after {seen.duplicates_before} in the {over} before"
    if seen.duplicates == 0 or seen.duplicates <= seen.duplicates_before:
        return Verdict(False, rate, f"{falling}, and {doubling}: not rising")
    return Verdict(True, rate, f"{falling} (limit {rule.rate:g}), and {doubling}")


def due(rule: Rule, mode: OnError, since_ns: int, now_ns: int) -> bool:
    """Whether a class can be switched: it does not fail closed, and has not for a whole window."""
    return mode is not OnError.FAIL_CLOSED and now_ns - since_ns >= rule.window_ns
