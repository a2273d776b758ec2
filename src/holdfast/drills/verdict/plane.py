"""The required conditions of a plane whose processes were killed or replaced: pure functions (R131)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.drills.model import Claim, Takeover
from holdfast.drills.verdict.effects import Attempt, Tally
from holdfast.types import NS


def whole(submitted: int, states: Mapping[str, int], ends: Sequence[int], tally: Tally) -> Iterator[Claim]:
    """No acknowledged job is lost, none ended twice, every job had one effect. `ends`: of each job."""
    succeeded = states.get("SUCCEEDED", 0)
    told = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    yield Claim("every acknowledged job succeeds", succeeded == submitted, f"{submitted} submitted: {told}")
    twice = sum(number > 1 for number in ends)
    yield Claim("no job has two terminal states", twice == 0, f"{twice} of {len(ends)} jobs")
    yield Claim("every job has one effect", tally.effects == submitted, f"{tally.effects} effects")


def taken_over(
    what: str, running: Iterable[int], attempts: Sequence[Attempt], died_ns: int, slo_ns: int
) -> Iterator[Takeover]:
    """The time until another worker started each of the jobs of the dead one."""
    for item in sorted(set(running)):
        later = [each.at_ns for each in attempts if each.item == item and each.at_ns > died_ns]
        if later:
            yield Takeover(f"{what} (job {item})", died_ns, min(later), slo_ns)


def undelayed(attempts: int, jobs: int, longest_ns: int, ttl_s: float) -> Iterator[Claim]:
    """No job waited for a lease to expire, and no work was repeated."""
    yield Claim("no attempt is wasted", attempts == jobs, f"{attempts} attempts for {jobs} jobs")
    longest = f"the slowest job took {longest_ns / NS:.2f} s, and leases last {ttl_s:g} s"
    yield Claim("no lease is waited out", longest_ns < ttl_s * NS, longest)
