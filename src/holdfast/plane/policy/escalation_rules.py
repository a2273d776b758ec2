"""The escalation rule: when high-risk classes stop failing open. Pure.

Two conditions must hold together, because each alone is harmless:

- The store is failing: locks fall back to the local one at more than `rate` a second over the window.
- It does harm: the same step completed, or the same job was published, more than once, and more often than in the
  window before.

Then the classes that the rule names are to fail closed. A class is judged only after its mode has been in force for a
whole window, so an operator who overrules an escalation has that long before the rule applies again.

The rule never switches back: a healthy store does not mean that the damage is understood.

Clock: the wall clock, as for the counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.lease.error_policy import OnError
from holdfast.types import NS


@dataclass(frozen=True, slots=True)
class EscalationRule:
    """The limits, and the risk classes that they apply to."""

    rate: float = 0.1  # fallbacks a second
    window_ns: int = 300 * NS
    classes: tuple[str, ...] = ("high",)


@dataclass(frozen=True, slots=True)
class EscalationEvidence:
    """Counts over all processes: in the window, and for duplicates also in the window before it."""

    fallbacks: int  # without those of exercises
    duplicates: int
    duplicates_before: int


@dataclass(frozen=True, slots=True)
class EscalationResult:
    """The result of the rule."""

    escalate: bool
    rate: float  # fallbacks a second
    because: str  # for people


def judge(rule: EscalationRule, seen: EscalationEvidence) -> EscalationResult:
    """Whether there is a reason to fail closed."""
    rate = seen.fallbacks * NS / rule.window_ns
    over = f"{rule.window_ns / NS:g} s"
    falling = f"{rate:.3g} fallbacks a second over {over}"
    if rate <= rule.rate:
        return EscalationResult(False, rate, f"{falling}, not more than {rule.rate:g}")
    doubling = f"{seen.duplicates} duplicates after {seen.duplicates_before} in the {over} before"
    if seen.duplicates == 0 or seen.duplicates <= seen.duplicates_before:
        return EscalationResult(False, rate, f"{falling}, and {doubling}: not rising")
    return EscalationResult(True, rate, f"{falling} (limit {rule.rate:g}), and {doubling}")


def due(rule: EscalationRule, mode: OnError, since_ns: int, now_ns: int) -> bool:
    """Whether a class can be switched: it has not failed closed for a whole window."""
    return mode is not OnError.FAIL_CLOSED and now_ns - since_ns >= rule.window_ns
