"""The required conditions of a plane whose processes were killed or replaced: pure functions (R131)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.drills.model import DrillClaim, MeasuredTakeover
from holdfast.drills.verdict.effects import EffectAttempt, EffectTally
from holdfast.types import NS


def whole(submitted: int, states: Mapping[str, int], ends: Sequence[int], tally: EffectTally) -> Iterator[DrillClaim]:
    """No acknowledged job is lost, none ended twice, every job had one effect. `ends`: of each job."""
    succeeded = states.get("SUCCEEDED", 0)
    told = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    yield DrillClaim("every acknowledged job succeeds", succeeded == submitted, f"{submitted} submitted: {told}")
    twice = sum(number > 1 for number in ends)
    yield DrillClaim("no job has two terminal states", twice == 0, f"{twice} of {len(ends)} jobs")
    yield DrillClaim("every job has one effect", tally.effects == submitted, f"{tally.effects} effects")


def taken_over(
    what: str, running: Iterable[int], attempts: Sequence[EffectAttempt], died_ns: int, slo_ns: int
) -> Iterator[MeasuredTakeover]:
    """The time until another worker started each of the jobs of the dead one."""
    for item in sorted(set(running)):
        later = [each.at_ns for each in attempts if each.item == item and each.at_ns > died_ns]
        if later:
            yield MeasuredTakeover(f"{what} (job {item})", died_ns, min(later), slo_ns)


def undelayed(attempts: int, jobs: int, longest_ns: int, ttl_s: float) -> Iterator[DrillClaim]:
    """No job waited for a lease to expire, and no work was repeated."""
    yield DrillClaim("no attempt is wasted", attempts == jobs, f"{attempts} attempts for {jobs} jobs")
    longest = f"the slowest job took {longest_ns / NS:.2f} s, and leases last {ttl_s:g} s"
    yield DrillClaim("no lease is waited out", longest_ns < ttl_s * NS, longest)
