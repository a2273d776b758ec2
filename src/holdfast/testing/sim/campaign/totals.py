"""What many simulated worlds came to, all in all: added up world by world, written down, read back, told to people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.testing.sim.worlds.faults import Profile
from holdfast.testing.sim.worlds.world import WorldOutcome
from holdfast.types import NS

VIOLATIONS_KEPT = 5  # of one world: the first ones say what went wrong, and the replay says the rest
HOUR_NS = 3600 * NS


def replay_command(seed: int, profile: Profile = Profile.BUSY) -> str:
    """The one command that shows a world again, step by step."""
    chosen = "" if profile is Profile.BUSY else f"--profile {profile} "
    return f"python -m holdfast.testing.simulate {chosen}--seed {seed} --trace"


@dataclass(frozen=True, slots=True)
class Failure:
    """A world in which a rule was broken."""

    profile: Profile
    seed: int
    number: int  # of violations
    violations: tuple[str, ...]  # the first ones

    @property
    def replay(self) -> str:
        """The one command that shows it again."""
        return replay_command(self.seed, self.profile)

    def to_json(self) -> dict[str, Any]:
        """For a file or a program."""
        return {
            "profile": str(self.profile),
            "seed": self.seed,
            "number": self.number,
            "violations": list(self.violations),
            "replay": self.replay,
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Failure:
        """What `to_json` wrote."""
        violations = tuple(str(each) for each in read["violations"])
        return cls(Profile(read["profile"]), int(read["seed"]), int(read["number"]), violations)


@dataclass(slots=True)
class Totals:
    """The sum of worlds."""

    worlds: Counter[str] = field(default_factory=Counter)  # by profile
    lock_ns: Counter[str] = field(default_factory=Counter)  # by profile: virtual time times number of locks
    held_ns: int = 0
    virtual_ns: int = 0
    cpu_ns: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, outcome: WorldOutcome, cpu_ns: int = 0) -> None:
        """One more world."""
        self.worlds[outcome.profile] += 1
        self.lock_ns[outcome.profile] += outcome.lock_ns
        self.held_ns += outcome.held_ns
        self.virtual_ns += outcome.virtual_ns
        self.cpu_ns += cpu_ns
        self.steps += outcome.steps
        self.counts.update({str(what): number for what, number in outcome.counts.items()})
        if outcome.violations:
            first = tuple(str(each) for each in outcome.violations[:VIOLATIONS_KEPT])
            self.failures.append(Failure(outcome.profile, outcome.seed, len(outcome.violations), first))

    @property
    def lock_hours(self) -> float:
        """How many simulated lock-hours: one lock, watched for one virtual hour, is one."""
        return self.lock_ns.total() / HOUR_NS

    def part(self, prefix: str) -> dict[str, int]:
        """The counts of one sort, by name: `part("fault")` is how often each kind of fault was made."""
        found = {
            what.removeprefix(f"{prefix} "): number
            for what, number in self.counts.items()
            if what.startswith(f"{prefix} ")
        }
        return dict(sorted(found.items()))

    def to_json(self) -> dict[str, Any]:
        """For a file or a program."""
        return {
            "worlds": self.worlds.total(),
            "worlds_by_profile": {str(name): number for name, number in sorted(self.worlds.items())},
            "lock_hours": self.lock_hours,
            "lock_ns": {str(name): number for name, number in sorted(self.lock_ns.items())},
            "held_ns": self.held_ns,
            "virtual_ns": self.virtual_ns,
            "cpu_ns": self.cpu_ns,
            "steps": self.steps,
            "counts": dict(sorted(self.counts.items())),
            "failed": [failure.to_json() for failure in self.failures],
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Totals:
        """What `to_json` wrote. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        return cls(
            worlds=_numbers(read["worlds_by_profile"]),
            lock_ns=_numbers(read["lock_ns"]),
            held_ns=int(read["held_ns"]),
            virtual_ns=int(read["virtual_ns"]),
            cpu_ns=int(read["cpu_ns"]),
            steps=int(read["steps"]),
            counts=_numbers(read["counts"]),
            failures=[Failure.from_json(each) for each in read["failed"]],
        )

    def lines(self, seconds: float) -> list[str]:
        """For people: what went wrong, if anything, and then how much was lived through in this time."""
        told = [line for failure in self.failures for line in _told(failure)]
        hours, counts, cpu = self.lock_hours, self.counts, max(self.cpu_ns / NS, 1e-9)
        mix = ", ".join(
            f"{self.worlds[name]:,} {name} with {self.lock_ns[name] / HOUR_NS:,.1f}" for name in sorted(self.worlds)
        )
        refused = self.part("refused")
        return [
            *told,
            f"{self.worlds.total():,} worlds ({mix} lock-hours)",
            f"{hours:,.2f} simulated lock-hours, {self.held_ns / HOUR_NS:,.2f} of them held",
            f"{self.virtual_ns / HOUR_NS:,.2f} hours of virtual time, {self.steps:,} steps",
            f"{seconds:,.1f} s, {self.cpu_ns / NS:,.1f} s of CPU time: {hours / cpu:.2f} lock-hours for a core-second",
            f"{counts['handed']:,} grants, {counts['extended']:,} renewals, {counts['write']:,} guarded writes",
            f"losses: {_listed(self.part('lost'))}",
            f"faults: {_listed(self.part('fault'))}",
            f"pauses at failpoints: {_listed(self.part('failpoint'))}",
            f"stale and refused by a fence: {_listed(refused)}",
            f"{len(self.failures)} with violations",
        ]


def _told(failure: Failure) -> list[str]:
    return [
        f"{failure.profile} seed {failure.seed}: {failure.number} violations; the first:",
        failure.violations[0],
        f"replay it with: {failure.replay}",
    ]


def _listed(numbers: Mapping[str, int]) -> str:
    shown = ", ".join(f"{what.replace('_', ' ')} {number:,}" for what, number in numbers.items())
    return f"{sum(numbers.values()):,} ({shown})" if shown else "0"


def _numbers(read: Mapping[str, Any]) -> Counter[str]:
    return Counter({str(what): int(number) for what, number in read.items()})
