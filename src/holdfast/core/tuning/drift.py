"""Whether what is set agrees with what was seen: each disagreement with its setting, and by how much.

A TTL that is longer than it must be is no disagreement as long as the takeover SLO is kept: safety was chosen. Nor is
an interval that is shorter, or a failure budget that is larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.backoff import Backoff
from holdfast.core.tuning.explain import added
from holdfast.core.tuning.percentiles import shown
from holdfast.core.tuning.retry import guardrails
from holdfast.core.tuning.ttl import FamilyDemand, Recommendation, bears, failed_periods, longest_silence_ns


class DriftKind(StrEnum):
    """What a setting stands against."""

    EVIDENCE = "evidence"  # the TTL is too short for what was seen, or renewals are too rare or too few
    SLO = "takeover SLO"  # it is too long for what was promised
    RETRY = "retry delay"  # a guardrail of the delay


class SettingNames(NamedTuple):
    """Where the times of a family are set."""

    ttl: str
    renew_every: str | None = None  # None: nowhere
    failures: str | None = None


class Disagreement(NamedTuple):
    """One thing that should not be as it is set."""

    family: str
    setting: str
    against: DriftKind
    text: str
    by_ns: int  # 0: not a length of time


def disagreements(
    names: SettingNames,
    demand: FamilyDemand,
    found: Recommendation,
    retry: Backoff | None = None,
    median_ns: int | None = None,
) -> list[Disagreement]:
    """What is wrong with the present times, and the delay, of a family. `median_ns`: of its holds."""
    wrong = (*_ttl(names.ttl, demand, found), *_renewal(names, demand, found), *_retry(demand, retry, median_ns))
    return [Disagreement(found.family, *each) for each in wrong]


def _ttl(setting: str, demand: FamilyDemand, found: Recommendation) -> Iterator[tuple[str, DriftKind, str, int]]:
    present = demand.present
    if present is None:
        return
    if found.shortest_ns is not None and present.ns < found.shortest_ns:
        by = found.shortest_ns - present.ns
        text = f"TTL {shown(present.ns)} is {shown(by)} too short: {added(found)} needs {shown(found.shortest_ns)}"
        yield setting, DriftKind.EVIDENCE, text, by
    if demand.slo is not None:
        bound = present.ns + demand.detection.of(present.ns)
        if bound > demand.slo.ns:
            by = bound - demand.slo.ns
            text = (
                f"TTL {shown(present.ns)} is taken over after up to {shown(bound)}, {shown(by)} beyond the SLO of "
                f"{shown(demand.slo.ns)}"
            )
            yield setting, DriftKind.SLO, text, by


def _renewal(
    names: SettingNames, demand: FamilyDemand, found: Recommendation
) -> Iterator[tuple[str, DriftKind, str, int]]:
    """The interval and the failure budget, for a TTL that could do."""
    present, made = demand.timing, found.timing
    if present is None or made is None or not found.renewed or present.ttl_ns < (found.shortest_ns or 0):
        return
    silence = sum(term.ns for term in found.terms)
    every = shown(present.renew_every_ns)
    if names.renew_every is not None and not bears(present, silence):
        longest = max(0, longest_silence_ns(present, silence))
        text = (
            f"renewed every {every}, a lease of {shown(present.ttl_ns)} outlives {shown(longest)} of silence, "
            f"{shown(silence - longest)} too little: {added(found)}; renew every {shown(made.renew_every_ns)}"
        )
        yield names.renew_every, DriftKind.EVIDENCE, text, silence - longest
    fails = failed_periods(present, silence)
    if names.failures is not None and present.failures_max <= fails:
        text = (
            f"{_times(present.failures_max)} a lease that is renewed every {every}, and a silence of {added(found)} "
            f"may cost {fails}; allow {made.failures_max}"
        )
        yield names.failures, DriftKind.EVIDENCE, text, 0


def _times(failures: int) -> str:
    return "1 failed renewal ends" if failures == 1 else f"{failures} failed renewals in a row end"


def _retry(
    demand: FamilyDemand, retry: Backoff | None, median_ns: int | None
) -> Iterator[tuple[str, DriftKind, str, int]]:
    if retry is None or demand.present is None:
        return
    for problem in guardrails(retry, demand.present.ns, median_ns):
        setting = "scheduler.busy_jitter" if "range over" in problem else "scheduler.busy_delay"
        by = 0 if median_ns is None or "median hold" not in problem else max(0, median_ns - retry.longest_ns())
        yield setting, DriftKind.RETRY, problem, by
