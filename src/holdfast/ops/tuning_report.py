"""Everything that `holdfast tune` finds out, as values: the command prints them, and programs read `as_dict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core import timing as arithmetic
from holdfast.core.backoff import Backoff, Fixed, jittered
from holdfast.core.contention import Contention
from holdfast.core.retry_tuning import Replayed, guardrails, replay
from holdfast.core.spread import Spread, shown
from holdfast.core.tuning import Evidence, Recommendation, recommend
from holdfast.core.tuning_checks import Disagreement, disagreements
from holdfast.core.tuning_words import mechanisms, sentences
from holdfast.ops.tuning_evidence import Gathered, evidence
from holdfast.ops.tuning_subjects import Subject
from holdfast.types import NS


@dataclass(frozen=True, slots=True)
class RetryReport:
    """One recorded contention, lived through with each delay."""

    family: str
    arrivals: int
    replayed: tuple[tuple[Replayed, tuple[str, ...]], ...]  # with what stands against each

    @property
    def sentences(self) -> list[str]:
        """Each delay beside the first."""
        (base, _), *others = self.replayed
        return [
            f"{other.name} instead of {base.name}: p95 wait {shown(base.p95_wait_ns)} -> {shown(other.p95_wait_ns)}, "
            f"busy attempts {base.busy:,} -> {other.busy:,}, Fano {base.burst.fano:.2f} -> {other.burst.fano:.2f}"
            for other, _ in others
        ]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "family": self.family,
            "arrivals": self.arrivals,
            "sentences": self.sentences,
            "delays": [
                {
                    "delay": run.name,
                    "p50_wait": run.waits.p50_ns / NS,
                    "p95_wait": run.waits.p95_ns / NS,
                    "p99_wait": run.waits.p99_ns / NS,
                    "contended_p95_wait": run.contended.p95_ns / NS,
                    "busy_attempts": run.busy,
                    "fano_50ms": run.burst.fano,
                    "peak_to_mean_50ms": run.burst.peak_to_mean,
                    "fano_500ms": run.waves.fano,
                    "unfinished": run.unfinished,
                    "against": list(against),
                }
                for run, against in self.replayed
            ],
        }


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """One family: what was seen, what is set, what should be."""

    subject: Subject
    evidence: Evidence
    classes: Mapping[str, Spread]
    found: Recommendation
    disagreements: tuple[Disagreement, ...]
    lost: int = 0

    @property
    def seen(self) -> bool:
        """Whether there is anything about it but its settings."""
        return bool(self.classes) or self.found.timing is not None

    @property
    def sentences(self) -> list[str]:
        """For people."""
        return sentences(self.subject.demand, self.found)

    @property
    def value(self) -> float | None:
        """What its setting should be, if that is another than it is. None: as it is, not known, or there is none."""
        ttl, subject = self.found.ttl_ns, self.subject
        present = subject.demand.present
        if ttl is None or subject.key is None or (present is not None and present.ns == ttl):
            return None
        return subject.value(ttl)

    def as_dict(self) -> dict[str, Any]:
        """For programs. Lengths of time are seconds."""
        found, demand, made = self.found, self.subject.demand, self.found.timing
        loss = found.false_loss
        return {
            "family": self.subject.family,
            "renewed": found.renewed,
            "setting": self.subject.key,
            "present_ttl": None if demand.present is None else demand.present.ns / NS,
            "present_from": None if demand.present is None else demand.present.source,
            "holds": {name or "all": _spread(each) for name, each in self.classes.items()},
            "lost": self.lost,
            "recommended": None
            if made is None
            else {
                "ttl": made.ttl_ns / NS,
                "renew_every": made.renew_every_ns / NS,
                "renew_deadline": (found.deadline_ns or 0) / NS,
                "failures": made.failures_max,
                "guard": arithmetic.guard_ns(made.ttl_ns, found.tail_ns) / NS,
                "drift": arithmetic.drift_ns(made.ttl_ns) / NS,
                "setting_value": None if self.subject.key is None else self.subject.value(made.ttl_ns),
            },
            "terms": [{"name": each.name, "seconds": each.ns / NS, "from": each.source} for each in found.terms],
            "binding": None if found.binding is None else str(found.binding),
            "shortest_ttl": None if found.shortest_ns is None else found.shortest_ns / NS,
            "longest_ttl": None if found.longest_ns is None else found.longest_ns / NS,
            "takeover": None if found.takeover_ns is None else found.takeover_ns / NS,
            "detection_from": demand.detection.source,
            "slo": None if found.slo is None else found.slo.ns / NS,
            "slo_from": None if found.slo is None else found.slo.source,
            "possible": found.possible,
            "mechanisms": [] if found.possible else list(mechanisms(found.renewed)),
            "false_loss": None
            if loss is None
            else {
                "per_hour_apart": loss.per_hour_apart,
                "per_hour_together": loss.per_hour_together,
                "upper_bound": loss.bound,
                "attempts": loss.attempts,
                "requests": loss.requests,
            },
            "refused": found.refused,
            "disagreements": [_disagreement(each) for each in self.disagreements],
            "sentences": self.sentences,
        }


def family_report(subject: Subject, gathered: Gathered) -> FamilyReport:
    """One family, from what was gathered."""
    present = subject.demand.present
    known = evidence(
        gathered,
        subject.family,
        renewed=subject.renewed,
        present_ns=None if present is None else present.ns,
        loop=subject.loop,
    )
    found = recommend(known, subject.demand)
    classes = gathered.classes(subject.family)
    return FamilyReport(
        subject,
        known,
        classes,
        found,
        tuple(disagreements(subject.where, subject.demand, found, subject.retry, _median(classes))),
        gathered.lost.get(subject.family, 0),
    )


def retry_report(
    subject: Subject, contention: Contention, delays: Sequence[tuple[str, Backoff]], *, seed: int = 0
) -> RetryReport:
    """The recorded contention of a family with each of the delays."""
    present = subject.demand.present
    median = sorted(each.hold_ns for each in contention.arrivals)
    middle = median[len(median) // 2] if median else None
    runs = []
    for name, backoff in delays:
        run = replay(name, contention.arrivals, backoff, patience_ns=round(subject.patience * NS), seed=seed)
        against = [] if present is None else guardrails(backoff, present.ns, middle)
        runs.append((run, tuple(against)))
    return RetryReport(subject.family, len(contention.arrivals), tuple(runs))


def delays(fixed: float, spread: float) -> list[tuple[str, Backoff]]:
    """The two that are compared: the same delay without and with jitter."""
    base = Fixed(round(fixed * NS))
    return [
        (f"{fixed * 1000:g} ms", base),
        (f"{fixed * 1000:g} ± {spread * 1000:g} ms", jittered(fixed, spread)),
    ]


def _median(classes: Mapping[str, Spread]) -> int | None:
    everything = classes.get("")
    return everything.p50_ns if everything is not None and everything.enough else None


def _spread(found: Spread) -> dict[str, Any]:
    return {
        "number": found.number,
        "p50": found.p50_ns / NS,
        "p95": found.p95_ns / NS,
        "p99": found.p99_ns / NS,
        "longest": found.longest_ns / NS,
        "exact": found.exact,
        "enough": found.enough,
        "from": found.source,
    }


def _disagreement(found: Disagreement) -> dict[str, Any]:
    return {
        "family": found.family,
        "setting": found.setting,
        "against": str(found.against),
        "text": found.text,
        "by": found.by_ns / NS,
    }
