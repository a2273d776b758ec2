"""The results of `holdfast tune` as values: the command prints them, and programs read `as_dict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.backoff import Backoff, Fixed, jittered
from holdfast.core.lease import timing as arithmetic
from holdfast.core.lease.timing import Timing, settle
from holdfast.core.tuning.contention import Contention
from holdfast.core.tuning.drift import Disagreement, disagreements
from holdfast.core.tuning.explain import mechanisms, sentences
from holdfast.core.tuning.percentiles import Spread, shown
from holdfast.core.tuning.retry import Replayed, guardrails, replay
from holdfast.core.tuning.ttl import FamilyEvidence, Recommendation, bears, recommend
from holdfast.ops.tuning.evidence import TuningData, evidence
from holdfast.ops.tuning.subjects import TuningSubject
from holdfast.plane.settings.lock_times import FamilyKeys
from holdfast.types import MS, NS


@dataclass(frozen=True, slots=True)
class RetryReport:
    """One recorded contention, replayed with each delay."""

    family: str
    arrivals: int
    replayed: tuple[tuple[Replayed, tuple[str, ...]], ...]  # with the objections to each

    @property
    def sentences(self) -> list[str]:
        """Each delay compared with the first."""
        (base, _), *others = self.replayed
        return [
            f"{other.name} instead of {base.name}: p95 wait {shown(base.p95_wait_ns)} -> {shown(other.p95_wait_ns)}, "
            f"busy attempts {base.busy:,} -> {other.busy:,}, Fano {base.burst.fano:.2f} -> {other.burst.fano:.2f}"
            for other, _ in others
        ]

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
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
    """One family: measured data, current settings, recommendation."""

    subject: TuningSubject
    evidence: FamilyEvidence
    classes: Mapping[str, Spread]
    found: Recommendation
    disagreements: tuple[Disagreement, ...]
    lost: int = 0

    @property
    def seen(self) -> bool:
        """Whether there is any measured data."""
        return bool(self.classes) or self.found.timing is not None

    @property
    def sentences(self) -> list[str]:
        """The report as text."""
        return sentences(self.subject.demand, self.found)

    @property
    def stays(self) -> bool:
        """Whether the settings in effect are the recommended ones."""
        made, present = self.found.timing, self.subject.demand.timing
        if made is None or present is None or not self.found.renewed:
            return made is not None and present is not None and made.ttl_ns == present.ttl_ns
        return _times(made) == _times(present)

    @property
    def wanted(self) -> dict[str, float]:
        """The recommended settings that differ from those in effect. Empty: no difference, or unknown."""
        made, keys = self.found.timing, self.subject.keys
        if made is None or keys is None or self.stays:
            return {}
        ttl = {keys.ttl: _ttl_value(made, keys)}
        if not self.found.renewed:
            return ttl
        silence = sum(term.ns for term in self.found.terms)
        return {**ttl, keys.renew_every: _rounded(made, silence) / NS, keys.failures: made.failures_max}

    def as_dict(self) -> dict[str, Any]:
        """JSON types. Durations are seconds."""
        found, demand, made = self.found, self.subject.demand, self.found.timing
        present, keys = demand.timing, self.subject.keys
        loss = found.false_loss
        return {
            "family": self.subject.family,
            "renewed": found.renewed,
            "setting": None if keys is None else keys.ttl,
            "settings": None if keys is None else self.subject.names._asdict(),
            "present_ttl": None if demand.present is None else demand.present.ns / NS,
            "present_from": None if demand.present is None else demand.present.source,
            "present_renew_every": None if present is None or not found.renewed else present.renew_every_ns / NS,
            "present_failures": None if present is None or not found.renewed else present.failures_max,
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
                "setting_value": None if keys is None else _ttl_value(made, keys),
                "change": self.wanted,
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


def family_report(subject: TuningSubject, gathered: TuningData) -> FamilyReport:
    """The report about one family."""
    present = subject.demand.timing
    known = evidence(gathered, subject.family, renewed=subject.renewed, present=present, loop=subject.loop)
    found = recommend(known, subject.demand)
    classes = gathered.classes(subject.family)
    return FamilyReport(
        subject,
        known,
        classes,
        found,
        tuple(disagreements(subject.names, subject.demand, found, subject.retry, _median(classes))),
        gathered.lost.get(subject.family, 0),
    )


def retry_report(
    subject: TuningSubject, contention: Contention, delays: Sequence[tuple[str, Backoff]], *, seed: int = 0
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
    """The two delays to compare: the same one without and with jitter."""
    base = Fixed(round(fixed * NS))
    return [
        (f"{fixed * 1000:g} ms", base),
        (f"{fixed * 1000:g} ± {spread * 1000:g} ms", jittered(fixed, spread)),
    ]


def _times(timing: Timing) -> tuple[int, int, int]:
    return timing.ttl_ns, timing.renew_every_ns, timing.failures_max


def _ttl_value(made: Timing, keys: FamilyKeys) -> float:
    """The value of the setting for a TTL, in seconds."""
    return round(made.ttl_ns / NS / keys.factor, 3)


def _rounded(made: Timing, silence_ns: int) -> int:
    """The interval rounded to the digits that a person would write, if it has the same effect."""
    for step in (MS, MS // 1000):
        every = made.renew_every_ns // step * step
        if every >= MS and bears(settle(ttl=made.ttl_ns / NS, renew_every=every / NS), silence_ns):
            return every
    return made.renew_every_ns


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
