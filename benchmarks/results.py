"""From measurements to what is shown: medians over the repeats, and ratios to the best peer and to the raw limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.contender import Role
from benchmarks.measure import Measurement
from benchmarks.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class Score:
    """One contender in one scenario: medians of its repeats."""

    name: str
    role: Role
    value: float
    spread: tuple[float, float]  # the least and the greatest of the repeats
    repeats: int
    extras: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario: who did how well, and who was left out and why."""

    name: str
    title: str
    unit: str
    aim: float | None
    less_is_better: bool
    scores: tuple[Score, ...]
    left_out: Mapping[str, str]

    def best_peer(self) -> Score | None:
        """The peer to be compared with."""
        peers = [score for score in self.scores if score.role is Role.PEER]
        if not peers:
            return None
        return (min if self.less_is_better else max)(peers, key=lambda score: score.value)

    def of_best_peer(self, score: Score) -> float | None:
        """How many times as good as the best peer."""
        return self._ratio(score, self.best_peer())

    def of_raw(self, score: Score) -> float | None:
        """How near to the raw limit: 1 is as good."""
        return self._ratio(score, next((each for each in self.scores if each.role is Role.RAW), None))

    def _ratio(self, score: Score, other: Score | None) -> float | None:
        if other is None:
            return None
        above, below = (other.value, score.value) if self.less_is_better else (score.value, other.value)
        return above / below if below else None

    def as_json(self) -> dict[str, Any]:
        """Everything, with the ratios."""
        scores = [
            {**asdict(score), "of_best_peer": self.of_best_peer(score), "of_raw": self.of_raw(score)}
            for score in self.scores
        ]
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "aim_of_best_peer": self.aim,
            "less_is_better": self.less_is_better,
            "scores": scores,
            "left_out": dict(self.left_out),
        }


def score(name: str, role: Role, measured: list[Measurement]) -> Score:
    """Medians, one by one."""
    values = [each.value for each in measured]
    extras = {key: median(each.extras[key] for each in measured) for key in measured[0].extras}
    return Score(name, role, median(values), (min(values), max(values)), len(values), extras)


def outcome(scenario: Scenario, scores: Iterable[Score], left_out: Mapping[str, str]) -> Outcome:
    """The outcome of a scenario."""
    return Outcome(
        scenario.name,
        scenario.title,
        scenario.unit,
        scenario.aim,
        scenario.less_is_better,
        tuple(scores),
        left_out,
    )
