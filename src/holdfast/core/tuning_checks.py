"""Whether what is set agrees with what was seen: each disagreement with its setting, and by how much.

A TTL that is longer than it must be is no disagreement as long as the takeover SLO is kept: safety was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.backoff import Backoff
from holdfast.core.retry_tuning import guardrails
from holdfast.core.spread import shown
from holdfast.core.tuning import Demand, Recommendation
from holdfast.core.tuning_words import added


class Against(StrEnum):
    """What a setting stands against."""

    EVIDENCE = "evidence"  # the TTL is too short for what was seen
    SLO = "takeover SLO"  # it is too long for what was promised
    RETRY = "retry delay"  # a guardrail of the delay


class Disagreement(NamedTuple):
    """One thing that should not be as it is set."""

    family: str
    setting: str
    against: Against
    text: str
    by_ns: int  # 0: not a length of time


def disagreements(
    setting: str, demand: Demand, found: Recommendation, retry: Backoff | None = None, median_hold_ns: int | None = None
) -> list[Disagreement]:
    """What is wrong with the present TTL, and the delay, of a family. `setting`: where the TTL is set."""
    return [
        Disagreement(found.family, *each)
        for each in (*_ttl(setting, demand, found), *_retry(demand, retry, median_hold_ns))
    ]


def _ttl(setting: str, demand: Demand, found: Recommendation) -> Iterator[tuple[str, Against, str, int]]:
    present = demand.present
    if present is None:
        return
    if found.shortest_ns is not None and present.ns < found.shortest_ns:
        by = found.shortest_ns - present.ns
        text = f"TTL {shown(present.ns)} is {shown(by)} too short: {added(found)} needs {shown(found.shortest_ns)}"
        yield setting, Against.EVIDENCE, text, by
    if demand.slo is not None:
        bound = present.ns + demand.detection.of(present.ns)
        if bound > demand.slo.ns:
            by = bound - demand.slo.ns
            text = (
                f"TTL {shown(present.ns)} is taken over after up to {shown(bound)}, {shown(by)} beyond the SLO of "
                f"{shown(demand.slo.ns)}"
            )
            yield setting, Against.SLO, text, by


def _retry(demand: Demand, retry: Backoff | None, median_ns: int | None) -> Iterator[tuple[str, Against, str, int]]:
    if retry is None or demand.present is None:
        return
    for problem in guardrails(retry, demand.present.ns, median_ns):
        setting = "scheduler.busy_jitter" if "range over" in problem else "scheduler.busy_delay"
        by = 0 if median_ns is None or "median hold" not in problem else max(0, median_ns - retry.longest_ns())
        yield setting, Against.RETRY, problem, by
