"""What must hold of a storm: everybody is served or told, in order, with bounded requests and bounded memory.

Pure: from what the processes of the drill reported to claims, figures and plots. Limits are several times what a sound
run uses, because machines differ; what they are there to catch grows with the number of waiters, and passes any of them
at ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.tuning.percentiles import of_durations
from holdfast.drills.model import Claim, Figure, Line, Plot, thinned
from holdfast.drills.verdict.resource_usage import MIB, Usage
from holdfast.types import NS

# A waiter whose turn it is asks, listens and asks again, and asks once more when it is woken; then it gives back. That
# is four. Two more are for hints that somebody else was quicker to follow. Ten thousand who asked by themselves would
# need thousands for each grant.
REQUESTS_MAX: Final = 6.0
# A task with its place in line and its description of the lock has 3 KiB, and so has a lease with its tenure and its
# entries with keeper and alarm. What every process has once, such as buffers, is let pass below the allowance.
BYTES_MAX: Final = 16 * 1024
ALLOWANCE: Final = 16 * MIB
# Leases that are due at about the same time are renewed with one request. A process with few leases has few of those.
BATCH: Final = 4.0
FEW_REQUESTS: Final = 128
# Objects that stay when everything was given back: histograms, caches. Of what the crowd needed, next to nothing.
OBJECTS_LEFT: Final = 0.10
OBJECTS_ALLOWANCE: Final = 5_000
# Fair locks take strict turns: the next waiter of a process has its ticket before the lease of the last is given back,
# so nobody is more than one ahead. The rest is for processes that the system did not run for as long as a ticket lives.
LEAD_MAX: Final = 10
# Plain locks promise no order between processes, and starve nobody all the same, but for a process that the system does
# not run for a moment: it asks again when it does, and has missed what was granted in that moment.
STARVED_SHARE: Final = 0.10
MOMENT_S: Final = 0.5


class Waits(NamedTuple):
    """What one process reports of its waiters."""

    name: str
    who: Sequence[int]  # in the order in which they were let in
    came_ns: Sequence[int]
    got_ns: Sequence[int]
    timed_out: int
    refused: int
    failed: int
    asked: int
    released: int
    bystander_held: bool
    before: Usage
    in_line: Usage
    after: Usage
    samples: Sequence[Usage]


class Hoard(NamedTuple):
    """What one process reports of its leases."""

    name: str
    taken: int
    not_taken: int
    not_given_back: int
    lost: int
    renewed: int
    requests: int
    kept_s: float
    before: Usage
    peak: Usage
    after: Usage
    samples: Sequence[Usage]


def waits_of(name: str, told: Mapping[str, Any]) -> Waits:
    """What a worker told, with its names."""
    fields = {each: told[each] for each in Waits._fields if each in told}
    looks = {each: Usage(*told[each]) for each in ("before", "in_line", "after")}
    return Waits(name=name, **{**fields, **looks, "samples": [Usage(*each) for each in told["samples"]]})


def hoard_of(name: str, told: Mapping[str, Any]) -> Hoard:
    """What a worker told, with its names."""
    fields = {each: told[each] for each in Hoard._fields if each in told}
    looks = {each: Usage(*told[each]) for each in ("before", "peak", "after")}
    return Hoard(name=name, **{**fields, **looks, "samples": [Usage(*each) for each in told["samples"]]})


def judge_waits(found: Sequence[Waits], waiters: int, balance: int, *, fair: bool) -> Iterator[Claim]:
    """Everything that must hold of the waiters. `balance`: how often the resource was really added to."""
    served = sum(len(each.who) for each in found)
    timed_out = sum(each.timed_out for each in found)
    refused, failed = sum(each.refused for each in found), sum(each.failed for each in found)
    told = f"{served:,} served, {timed_out:,} timed out and said so, {failed:,} without an answer"
    yield Claim("everybody is served, or told that the time is over", served + timed_out == waiters, told)
    done = f"{balance:,} done, {refused:,} refused, of {served:,}"
    yield Claim("everybody who is served does its work once", balance == served - refused and refused == 0, done)
    overtaken = sum(_overtaken(each.who) for each in found)
    yield Claim("nobody overtakes in its own process", overtaken == 0, f"{overtaken:,} overtaken")
    share = served / max(1, len(found))
    if fair:
        ahead = lead(found)
        seen = f"one was {ahead:,} grants ahead of another at most; the limit is {LEAD_MAX}"
        yield Claim("processes take turns", ahead <= LEAD_MAX, seen)
    else:
        moment = MOMENT_S * served / max(_took_s(found), MOMENT_S)  # what is granted in such a moment
        least, wanted = first_half(found), STARVED_SHARE * (share / 2 - moment)
        seen = f"{least:,} for the last of them, of {round(share / 2):,} if all were equal"
        yield Claim("no process starves: each has its part in the first half of the grants", least >= wanted, seen)
    requests = sum(each.asked + each.released for each in found) / max(1, served)
    yield Claim(
        f"a grant costs no more than {REQUESTS_MAX:g} requests", requests <= REQUESTS_MAX, f"{requests:.1f} for each"
    )
    for each in found:
        peak = max(sample.resident for sample in (each.in_line, *each.samples))
        yield from _memory(each.name, "waiter", waiters // len(found), each.before, peak, each.in_line, each.after)
    lost = [each.name for each in found if not each.bystander_held]
    yield Claim(
        "a lease that has nothing to do with it is kept through the storm",
        not lost,
        f"lost by {', '.join(lost)}" if lost else f"kept by all {len(found)} processes",
    )


def judge_hoards(found: Sequence[Hoard], keys: int, left: int, renewals: int) -> Iterator[Claim]:
    """Everything that must hold of many leases at once. `left`: how many the store still had at the end."""
    taken, lost = sum(each.taken for each in found), sum(each.lost for each in found)
    missed = sum(each.not_taken for each in found)
    yield Claim("every lock is got", taken == keys, f"{taken:,} of {keys:,}, {missed:,} without an answer")
    yield Claim("none is lost", lost == 0, f"{lost:,} lost")
    renewed = sum(each.renewed for each in found)
    yield Claim(f"all are renewed {renewals} times", renewed >= renewals * keys, f"{renewed:,} renewals")
    requests = sum(each.requests for each in found)
    seen = f"{requests:,} requests, {renewed / max(1, requests):,.1f} leases in each"
    few = requests <= FEW_REQUESTS * len(found)
    yield Claim("renewals go in batches", few or renewed >= BATCH * requests, seen)
    kept = sum(each.not_given_back for each in found)
    yield Claim("all are given back", kept == 0 and left == 0, f"{kept:,} refused, {left:,} left in the store")
    for each in found:
        peak = max(sample.resident for sample in (each.peak, *each.samples))
        yield from _memory(each.name, "lease", max(1, each.taken), each.before, peak, each.peak, each.after)


def _memory(name: str, what: str, number: int, before: Usage, peak: int, full: Usage, after: Usage) -> Iterator[Claim]:
    if before.resident:
        grown = peak - before.resident
        yield Claim(
            f"{name}: no more than {BYTES_MAX // 1024} KiB for a {what}",
            grown <= BYTES_MAX * number + ALLOWANCE,
            f"{grown / MIB:.1f} MiB for {number:,}, {grown / number / 1024:.1f} KiB each",
        )
    needed, stayed = full.objects - before.objects, after.objects - before.objects
    yield Claim(
        f"{name}: its memory is free again",
        stayed <= OBJECTS_LEFT * max(0, needed) + OBJECTS_ALLOWANCE,
        f"{needed:,} objects more when it was full, {stayed:,} afterwards",
    )


def _took_s(found: Sequence[Waits]) -> float:
    """From the first grant to the last."""
    times = [at_ns for each in found for at_ns in each.got_ns]
    return (max(times, default=0) - min(times, default=0)) / NS


def _overtaken(who: Sequence[int]) -> int:
    """How many were let in after somebody who came later to the same line."""
    latest, found = -1, 0
    for number in who:
        found += number < latest
        latest = max(latest, number)
    return found


def lead(found: Sequence[Waits]) -> int:
    """By how many grants one process was ahead of another at most, while both still had waiters."""
    order = sorted((at_ns, place) for place, each in enumerate(found) for at_ns in each.got_ns)
    counts, ends, most = [0] * len(found), [len(each.got_ns) for each in found], 0
    for _, place in order:
        counts[place] += 1
        waiting = [count for count, end in zip(counts, ends, strict=True) if count < end]
        if waiting and counts[place] < ends[place]:
            most = max(most, counts[place] - min(waiting))
    return most


def first_half(found: Sequence[Waits]) -> int:
    """What the process that got least had got when half of all grants were given."""
    order = sorted((at_ns, place) for place, each in enumerate(found) for at_ns in each.got_ns)
    counts = [0] * len(found)
    for _, place in order[: len(order) // 2]:
        counts[place] += 1
    return min(counts, default=0)


def wait_figures(found: Sequence[Waits]) -> Iterator[Figure]:
    """Waits, order and memory in numbers."""
    every = [got - came for each in found for came, got in zip(each.came_ns, each.got_ns, strict=True)]
    if not every:
        return
    spread = of_durations(every, "waits")
    told = f"p50 {spread.p50_ns / NS:.2f} s, p95 {spread.p95_ns / NS:.2f} s, longest {max(every) / NS:.2f} s"
    yield Figure("waits", told, "they come at once, and are served one after the other")
    took = _took_s(found)
    yield Figure("grants", f"{len(every) / max(took, 1e-9):,.0f} a second", f"{len(every):,} in {took:.1f} s")
    yield Figure("lead", f"{lead(found):,}", "grants by which one process was ahead of another at most")
    requests = sum(each.asked + each.released for each in found) / len(every)
    yield Figure("requests", f"{requests:.1f}", "for each grant, the release included")
    grown = sum(max(look.resident for look in (each.in_line, *each.samples)) - each.before.resident for each in found)
    yield Figure("memory", f"{grown / len(every) / 1024:.1f} KiB", "for each waiter, at the peak")


def hoard_figures(found: Sequence[Hoard]) -> Iterator[Figure]:
    """Renewals and memory in numbers."""
    taken, renewed = sum(each.taken for each in found), sum(each.renewed for each in found)
    requests = sum(each.requests for each in found)
    kept = max(each.kept_s for each in found)
    yield Figure("leases", f"{taken:,}", f"kept by {len(found)} processes at once, for {kept:.0f} s after the last")
    yield Figure("renewals", f"{renewed:,}", f"with {requests:,} requests")
    grown = sum(max(look.resident for look in (each.peak, *each.samples)) - each.before.resident for each in found)
    yield Figure("memory", f"{grown / max(1, taken) / 1024:.1f} KiB", "for each lease, at the peak")
    stays = sum(each.after.resident - each.before.resident for each in found)
    note = "what the interpreter keeps for the next time; the objects in it are gone"
    yield Figure("resident afterwards", f"+{max(0, stays) / MIB:.0f} MiB", note)


def wait_plot(found: Sequence[Waits]) -> Plot:
    """Waits by the order of arrival over all processes."""
    order = sorted(
        (came, got - came, place)
        for place, each in enumerate(found)
        for came, got in zip(each.came_ns, each.got_ns, strict=True)
    )
    points: list[list[tuple[float, float]]] = [[] for _ in found]
    for number, (_, wait_ns, place) in enumerate(order):
        points[place].append((number, wait_ns / NS))
    lines = [Line(each.name, thinned(mine)) for each, mine in zip(found, points, strict=True)]
    return Plot("How long they waited, by the order in which they came", "order of arrival", "seconds", lines)


def memory_plot(found: Sequence[Waits] | Sequence[Hoard]) -> Plot:
    """Resident memory over time."""
    began_ns = min((look.at_ns for each in found for look in each.samples), default=0)
    lines = [
        Line(
            each.name,
            thinned(
                [
                    ((look.at_ns - began_ns) / NS, look.resident / MIB)
                    for look in sorted((each.before, *each.samples, each.after))
                    if look.at_ns >= began_ns
                ]
            ),
        )
        for each in found
    ]
    return Plot("Resident memory", "seconds", "MiB", lines)
