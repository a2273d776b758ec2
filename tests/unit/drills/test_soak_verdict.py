"""A soak fails when anything that a process uses grows, and when one of its drills does; leaks are planted here."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Mapping
from types import MappingProxyType
from xml.etree import ElementTree as ET

import pytest

from holdfast.drills.catalog import DRILLS, drill
from holdfast.drills.model import DrillClaim, Guard, Need, Plot, PlotLine, thinned
from holdfast.drills.planner import planned
from holdfast.drills.report import charts
from holdfast.drills.report.html import page
from holdfast.drills.scenarios.soak import FAILURES_MAX, MIXTURE, SoakTally
from holdfast.drills.verdict.leaks import ENOUGH, LIMITS, WARM_UP, flat_figures, flat_plots, judge_flat, trend_of
from holdfast.drills.verdict.leases import judge
from holdfast.drills.verdict.resource_usage import MIB, Usage, heap, usage
from holdfast.errors import BadInput
from holdfast.types import NS
from unit.drills.drill_scenes import full_scene, guarded, overtaken, scene, verdict

FIELDS = [limit.field for limit in LIMITS]


def samples(growth: Mapping[str, float] = MappingProxyType({}), number: int = 600) -> list[Usage]:
    """Looks at a process, one a second, with the noise that they have; `growth` is by how much a field grows in all."""
    chance = random.Random(7)
    found = []
    for second in range(number):
        warm = 1.0 if second > number * WARM_UP / 2 else 0.8  # caches fill at the beginning
        level = {
            "resident": warm * 60 * MIB + chance.randrange(2 * MIB),
            "heap": warm * 6 * MIB + chance.randrange(MIB // 16),
            "objects": warm * 120_000 + chance.randrange(1_500),
            "threads": 8 + chance.randrange(2),
            "tasks": 9 + chance.randrange(3),
            "files": 30 + chance.randrange(3) + (10 if second % 50 == 7 else 0),  # a peak when all clients reconnect
            "connections": 5 + chance.randrange(2),
        }
        grown = {name: round(value + growth.get(name, 0.0) * second / number) for name, value in level.items()}
        found.append(Usage(at_ns=second * NS, **grown))
    return found


def broken(found: list[Usage]) -> list[DrillClaim]:
    return [each for each in judge_flat(found) if not each.kept]


def test_what_only_goes_up_and_down_is_flat() -> None:
    assert broken(samples()) == []
    assert len(list(judge_flat(samples()))) == len(LIMITS)


@pytest.mark.parametrize(
    ("field", "growth"),
    [
        ("resident", 30 * MIB),
        ("heap", 3 * MIB),  # outside of the interpreter, and far too little to be seen in resident memory
        ("objects", 12_000),  # one small object for every twentieth of a second
        ("threads", 6),
        ("tasks", 12),
        ("files", 12),
        ("connections", 9),
    ],
)
def test_a_leak_fails_the_verdict_and_is_named(field: str, growth: float) -> None:
    found = broken(samples({field: growth}))
    name = next(limit.name for limit in LIMITS if limit.field == field)
    assert [each.text for each in found] == [f"{name}: flat"]
    spoiled = scene(None, [], claims=found)
    assert not verdict(judge(spoiled)).passed


@pytest.mark.parametrize("field", FIELDS)
def test_what_falls_is_flat_enough(field: str) -> None:
    assert broken(samples({field: -3.0})) == []


def test_a_leak_that_begins_in_the_middle_is_seen() -> None:
    found = samples()
    late = [each._replace(files=each.files + max(0, place - 300) // 20) for place, each in enumerate(found)]
    assert [each.text for each in broken(late)] == ["open files: flat"]


@pytest.mark.skipif(heap() == 0, reason="the C library does not say what it has given out")
def test_what_a_library_leaks_outside_of_the_interpreter_is_seen_in_the_heap_and_nowhere_else() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    much = 64 * MIB  # next to which nothing counts that other threads do meanwhile; no page of it is ever touched
    before = usage(settled=True)
    block = libc.malloc(much)
    full = usage(settled=True)
    libc.free(block)
    after = usage(settled=True)
    assert full.heap - before.heap == pytest.approx(much, rel=0.1)
    assert full.objects - before.objects < 1_000
    assert full.resident - before.resident < much / 2
    assert full.heap - after.heap == pytest.approx(much, rel=0.1)


def test_memory_that_the_system_does_not_tell_is_not_said_to_be_flat() -> None:
    found = [each._replace(heap=0) for each in samples()]
    assert [each.text for each in judge_flat(found)] == [
        f"{each.name}: flat" for each in LIMITS if each.field != "heap"
    ]
    assert "heap in use" not in {each.name for each in flat_figures(found)}
    idle = [each._replace(connections=0) for each in samples()]
    assert "connections: flat" in {each.text for each in judge_flat(idle)}, "none of what is counted is a number too"


def test_too_few_samples_say_nothing() -> None:
    few = samples(number=int(ENOUGH / (1 - WARM_UP)) - 2)
    assert list(judge_flat(few)) == []
    assert trend_of(few, "files") is None
    assert list(flat_figures(few)) == []


def test_the_figures_and_curves_of_a_resident_are_for_people() -> None:
    told = {each.name: each for each in flat_figures(samples({"files": 12}))}
    assert told["resident memory"].value.endswith("MiB")
    assert "an hour" in told["open files"].note
    memory, objects, counted = flat_plots(samples())
    assert [line.name for line in memory.lines] == ["resident memory", "heap in use"]
    assert [line.name for line in counted.lines] == ["threads", "tasks", "open files", "connections"]
    for plot in (memory, objects, counted):
        picture = charts.lines(plot)
        assert picture is not None
        assert len(ET.fromstring(picture).findall("polyline")) == len(plot.lines)
    assert list(flat_plots([])) == []


def test_a_plot_of_nothing_is_left_out_and_one_of_a_single_point_is_drawn() -> None:
    assert charts.lines(Plot("nothing", "s", "n", [PlotLine("none", [])])) is None
    assert "<svg" in (charts.lines(Plot("one", "s", "n", [PlotLine("a <b>", [(0.0, 0.0)])])) or "")
    assert [charts.step(each) for each in (0, 6, 7, 60, 0.6, 25)] == pytest.approx([1, 1, 2, 10, 0.1, 5])
    assert thinned([(float(each), 0.0) for each in range(1_000)], 3) == [(0.0, 0.0), (500.0, 0.0), (999.0, 0.0)]


def test_curves_are_part_of_the_page() -> None:
    shown = full_scene(Guard.ON, guarded())
    shown.plots += flat_plots(samples())
    text = page(verdict(judge(shown)), "now")
    assert "heap in use" in text
    assert "polyline" in text


def test_of_drills_only_counts_are_kept_and_one_that_fails_fails_the_soak() -> None:
    tally = SoakTally(rounds=1)
    bad = scene(Guard.ON, guarded(), claims=[DrillClaim("it holds", kept=False, seen="it does not")])
    tally.add("pause on redis", verdict(judge(scene(Guard.ON, guarded())), judge(scene(Guard.OFF, overtaken()))))
    assert (tally.grants, tally.refused, tally.lost_bare, tally.lost_guarded) == (4, 1, 1, 0)
    assert all(each.kept for each in tally.claims())
    for _ in range(FAILURES_MAX + 5):
        tally.add("kill on sqlite", verdict(judge(bad)))
    wrong = [each for each in tally.claims() if not each.kept]
    assert len(tally.failures) == FAILURES_MAX, "what is kept of a long soak is bounded"
    assert wrong[0].text == "kill on sqlite ends as expected"
    assert wrong[0].seen == "round 1, a <scene>: it holds: it does not"
    assert wrong[-1].seen == f"1 passed, {FAILURES_MAX + 5} failed"
    told = {each.name: each for each in tally.figures()}
    assert told["pause on redis"].value == "1 passed"
    assert told["kill on sqlite"].note == f"{FAILURES_MAX + 5} failed"


def test_every_other_drill_about_leases_is_part_of_the_mixture() -> None:
    about_leases = {each.name for each in DRILLS if each.need is not Need.FLEET}
    assert {each.drill for each in MIXTURE} == about_leases - {"soak"}
    for piece in MIXTURE:
        assert drill(piece.drill).limit_s(planned(drill(piece.drill), duration=piece.seconds)) < 600


def test_a_soak_may_last_for_days_and_breaks_nothing_but_its_own() -> None:
    assert planned(drill("soak"), duration=86_400).duration_s == 86_400
    for options, field in (({"url": "redis://127.0.0.1"}, "--url"), ({"store": "redis"}, "--store")):
        with pytest.raises(BadInput) as caught:
            planned(drill("soak"), **options)  # type: ignore[arg-type]  # by name
        assert caught.value.field == field
