"""The required conditions of a storm: all waiters are served or told, in order, with bounded requests and memory.

Pure: from the reports of the drill's processes to claims, figures and plots. The limits are several times the usage of
a correct run, because machines differ. The errors that they detect grow with the number of waiters, and exceed every
limit at ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.tuning.percentiles import of_durations
from holdfast.drills.model import DrillClaim, Plot, PlotLine, ReportFigure, thinned
from holdfast.drills.verdict.resource_usage import MIB, Usage
from holdfast.types import NS

# The next waiter asks, listens, asks again, and asks once more when it is woken; then it releases. That is four
# requests. Two more are for notifications that another waiter used first. Ten thousand polling waiters would need
# thousands for each grant.
REQUESTS_MAX: Final = 6.0
# A task with its queue entry and its lock spec takes 3 KiB, and so does a lease with its record and its
# timers. Common memory of each process, such as buffers, is below the allowance.
BYTES_MAX: Final = 16 * 1024
ALLOWANCE: Final = 16 * MIB
# Leases that are due at about the same time are renewed with one request. A process with few leases has few of those.
BATCH: Final = 4.0
FEW_REQUESTS: Final = 128
# Objects that remain after all releases: histograms, caches. Next to nothing of the waiters' memory.
OBJECTS_LEFT: Final = 0.10
OBJECTS_ALLOWANCE: Final = 5_000
# Fair locks alternate strictly: the next waiter of a process has its ticket before the last lease is released, so no
# process is more than one ahead. The rest is for processes that the system did not schedule during a ticket's life.
LEAD_MAX: Final = 10
# Plain locks promise no order between processes, but starve none, except a process that the system does not schedule
# for a moment: it asks again afterwards, and has missed the grants of that moment.
STARVED_SHARE: Final = 0.10
MOMENT_S: Final = 0.5


class WaiterReport(NamedTuple):
    """The report of one process about its waiters."""

    name: str
    who: Sequence[int]  # in the order of grants
    came_ns: Sequence[int]
    got_ns: Sequence[int]
    timed_out: int
    refused: int
    failed: int
    asked: int
    released: int
    unrelated_held: bool
    before: Usage
    queued: Usage
    after: Usage
    samples: Sequence[Usage]


class LeaseReport(NamedTuple):
    """The report of one process about its leases."""

    name: str
    taken: int
    not_taken: int
    not_released: int
    lost: int
    renewed: int
    requests: int
    kept_s: float
    before: Usage
    peak: Usage
    after: Usage
    samples: Sequence[Usage]


def waiter_report_of(name: str, told: Mapping[str, Any]) -> WaiterReport:
    """The report of a worker as an object."""
    fields = {each: told[each] for each in WaiterReport._fields if each in told}
    looks = {each: Usage(*told[each]) for each in ("before", "queued", "after")}
    return WaiterReport(name=name, **{**fields, **looks, "samples": [Usage(*each) for each in told["samples"]]})


def lease_report_of(name: str, told: Mapping[str, Any]) -> LeaseReport:
    """The report of a worker as an object."""
    fields = {each: told[each] for each in LeaseReport._fields if each in told}
    looks = {each: Usage(*told[each]) for each in ("before", "peak", "after")}
    return LeaseReport(name=name, **{**fields, **looks, "samples": [Usage(*each) for each in told["samples"]]})


def judge_waits(found: Sequence[WaiterReport], waiters: int, balance: int, *, fair: bool) -> Iterator[DrillClaim]:
    """The required conditions of the waiters. `balance`: how often the resource was really incremented."""
    served = sum(len(each.who) for each in found)
    timed_out = sum(each.timed_out for each in found)
    refused, failed = sum(each.refused for each in found), sum(each.failed for each in found)
    told = f"{served:,} served, {timed_out:,} timed out, {failed:,} without an answer"
    yield DrillClaim("every waiter is served or times out", served + timed_out == waiters, told)
    done = f"{balance:,} done, {refused:,} refused, of {served:,}"
    yield DrillClaim("every served waiter does its work once", balance == served - refused and refused == 0, done)
    overtaken = sum(_overtaken(each.who) for each in found)
    yield DrillClaim("no waiter overtakes another in its process", overtaken == 0, f"{overtaken:,} overtaken")
    share = served / max(1, len(found))
    if fair:
        ahead = lead(found)
        seen = f"one was {ahead:,} grants ahead of another at most; the limit is {LEAD_MAX}"
        yield DrillClaim("processes alternate", ahead <= LEAD_MAX, seen)
    else:
        moment = MOMENT_S * served / max(_took_s(found), MOMENT_S)  # grants in such a moment
        least, wanted = first_half(found), STARVED_SHARE * (share / 2 - moment)
        seen = f"{least:,} for the last of them, of {round(share / 2):,} if all were equal"
        yield DrillClaim(
            "no process starves: each has its share of the first half of the grants", least >= wanted, seen
        )
    requests = sum(each.asked + each.released for each in found) / max(1, served)
    yield DrillClaim(
        f"a grant costs at most {REQUESTS_MAX:g} requests", requests <= REQUESTS_MAX, f"{requests:.1f} for each"
    )
    for each in found:
        peak = max(sample.resident for sample in (each.queued, *each.samples))
        yield from _memory(each.name, "waiter", waiters // len(found), each.before, peak, each.queued, each.after)
    lost = [each.name for each in found if not each.unrelated_held]
    yield DrillClaim(
        "an unrelated lease is kept through the storm",
        not lost,
        f"lost by {', '.join(lost)}" if lost else f"kept by all {len(found)} processes",
    )


def judge_leases(found: Sequence[LeaseReport], keys: int, left: int, renewals: int) -> Iterator[DrillClaim]:
    """The required conditions of many leases. `left`: how many the store still had at the end."""
    taken, lost = sum(each.taken for each in found), sum(each.lost for each in found)
    missed = sum(each.not_taken for each in found)
    yield DrillClaim("every lock is acquired", taken == keys, f"{taken:,} of {keys:,}, {missed:,} without an answer")
    yield DrillClaim("none is lost", lost == 0, f"{lost:,} lost")
    renewed = sum(each.renewed for each in found)
    yield DrillClaim(f"all are renewed {renewals} times", renewed >= renewals * keys, f"{renewed:,} renewals")
    requests = sum(each.requests for each in found)
    seen = f"{requests:,} requests, {renewed / max(1, requests):,.1f} leases in each"
    few = requests <= FEW_REQUESTS * len(found)
    yield DrillClaim("renewals go in batches", few or renewed >= BATCH * requests, seen)
    kept = sum(each.not_released for each in found)
    yield DrillClaim("all are released", kept == 0 and left == 0, f"{kept:,} refused, {left:,} left in the store")
    for each in found:
        peak = max(sample.resident for sample in (each.peak, *each.samples))
        yield from _memory(each.name, "lease", max(1, each.taken), each.before, peak, each.peak, each.after)


def _memory(
    name: str, what: str, number: int, before: Usage, peak: int, full: Usage, after: Usage
) -> Iterator[DrillClaim]:
    if before.resident:
        grown = peak - before.resident
        yield DrillClaim(
            f"{name}: at most {BYTES_MAX // 1024} KiB for a {what}",
            grown <= BYTES_MAX * number + ALLOWANCE,
            f"{grown / MIB:.1f} MiB for {number:,}, {grown / number / 1024:.1f} KiB each",
        )
    needed, stayed = full.objects - before.objects, after.objects - before.objects
    yield DrillClaim(
        f"{name}: its memory is freed",
        stayed <= OBJECTS_LEFT * max(0, needed) + OBJECTS_ALLOWANCE,
        f"{needed:,} objects more at the peak, {stayed:,} afterwards",
    )


def _took_s(found: Sequence[WaiterReport]) -> float:
    """The time from the first grant to the last."""
    times = [at_ns for each in found for at_ns in each.got_ns]
    return (max(times, default=0) - min(times, default=0)) / NS


def _overtaken(who: Sequence[int]) -> int:
    """How many were granted the lock after a later arrival in the same queue."""
    latest, found = -1, 0
    for number in who:
        found += number < latest
        latest = max(latest, number)
    return found


def lead(found: Sequence[WaiterReport]) -> int:
    """The maximum lead of one process over another in grants, while both still had waiters."""
    order = sorted((at_ns, place) for place, each in enumerate(found) for at_ns in each.got_ns)
    counts, ends, most = [0] * len(found), [len(each.got_ns) for each in found], 0
    for _, place in order:
        counts[place] += 1
        waiting = [count for count, end in zip(counts, ends, strict=True) if count < end]
        if waiting and counts[place] < ends[place]:
            most = max(most, counts[place] - min(waiting))
    return most


def first_half(found: Sequence[WaiterReport]) -> int:
    """The grants of the last process when half of all grants were made."""
    order = sorted((at_ns, place) for place, each in enumerate(found) for at_ns in each.got_ns)
    counts = [0] * len(found)
    for _, place in order[: len(order) // 2]:
        counts[place] += 1
    return min(counts, default=0)


def wait_figures(found: Sequence[WaiterReport]) -> Iterator[ReportFigure]:
    """Waits, order and memory in numbers."""
    every = [got - came for each in found for came, got in zip(each.came_ns, each.got_ns, strict=True)]
    if not every:
        return
    spread = of_durations(every, "waits")
    told = f"p50 {spread.p50_ns / NS:.2f} s, p95 {spread.p95_ns / NS:.2f} s, longest {max(every) / NS:.2f} s"
    yield ReportFigure("waits", told, "they arrive together, and are served one after the other")
    took = _took_s(found)
    yield ReportFigure("grants", f"{len(every) / max(took, 1e-9):,.0f} per second", f"{len(every):,} in {took:.1f} s")
    yield ReportFigure("lead", f"{lead(found):,}", "maximum lead of one process over another in grants")
    requests = sum(each.asked + each.released for each in found) / len(every)
    yield ReportFigure("requests", f"{requests:.1f}", "for each grant, the release included")
    grown = sum(max(look.resident for look in (each.queued, *each.samples)) - each.before.resident for each in found)
    yield ReportFigure("memory", f"{grown / len(every) / 1024:.1f} KiB", "for each waiter, at the peak")


def lease_figures(found: Sequence[LeaseReport]) -> Iterator[ReportFigure]:
    """Renewals and memory in numbers."""
    taken, renewed = sum(each.taken for each in found), sum(each.renewed for each in found)
    requests = sum(each.requests for each in found)
    kept = max(each.kept_s for each in found)
    yield ReportFigure("leases", f"{taken:,}", f"held by {len(found)} processes, for {kept:.0f} s after the last")
    yield ReportFigure("renewals", f"{renewed:,}", f"with {requests:,} requests")
    grown = sum(max(look.resident for look in (each.peak, *each.samples)) - each.before.resident for each in found)
    yield ReportFigure("memory", f"{grown / max(1, taken) / 1024:.1f} KiB", "for each lease, at the peak")
    stays = sum(each.after.resident - each.before.resident for each in found)
    note = "memory that the interpreter keeps for reuse; its objects are gone"
    yield ReportFigure("resident afterwards", f"+{max(0, stays) / MIB:.0f} MiB", note)


def wait_plot(found: Sequence[WaiterReport]) -> Plot:
    """Waits by the order of arrival over all processes."""
    order = sorted(
        (came, got - came, place)
        for place, each in enumerate(found)
        for came, got in zip(each.came_ns, each.got_ns, strict=True)
    )
    points: list[list[tuple[float, float]]] = [[] for _ in found]
    for number, (_, wait_ns, place) in enumerate(order):
        points[place].append((number, wait_ns / NS))
    lines = [PlotLine(each.name, thinned(mine)) for each, mine in zip(found, points, strict=True)]
    return Plot("Waits by order of arrival", "order of arrival", "seconds", lines)


def memory_plot(found: Sequence[WaiterReport] | Sequence[LeaseReport]) -> Plot:
    """Resident memory over time."""
    began_ns = min((look.at_ns for each in found for look in each.samples), default=0)
    lines = [
        PlotLine(
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
