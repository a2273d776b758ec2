"""What a fault excuses is said and not held against a scene; what it does not excuse fails it, also with guards."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from holdfast.core.history.events import EventKind, Record
from holdfast.drills.model import FaultKind, FaultMoment, FaultSpan, Guard, SceneRecord
from holdfast.drills.report import timeline
from holdfast.drills.report.html import page
from holdfast.drills.report.json import as_dict
from holdfast.drills.verdict.leases import judge, plain
from holdfast.types import NS
from unit.drills.drill_scenes import KEY, grant, refused, release, scene, verdict, write


def lost(who: str, fence: int, at_s: float) -> Record:
    """A worker noticed that its lease is lost."""
    at_ns = round(at_s * NS)
    return Record(EventKind.LOST, at_ns, KEY, "drill", f"{who}@host:1/x", fence, reason="stolen", until_ns=at_ns + NS)


def both_sides(*then: Record, fence: int = 2) -> SceneRecord:
    """Ada and Ben are granted the lock by two sides, and hold it together for 0.4 s."""
    history = [grant("ada", 1, 0.0), grant("ben", fence, 0.5), lost("ada", 1, 0.9), release("ben", fence, 2.0)]
    made = scene(Guard.ON, [*history, *then])
    made.excuses = frozenset({"C4"})
    return made


@pytest.mark.requires("R73")
def test_exclusion_that_a_failover_breaks_is_said_and_excused() -> None:
    judged = judge(both_sides(write("ben", 2, 0.6, value=1, based_on=0), refused("ada", 1, 0.7, seen=2)))
    assert (judged.ok, judged.lost, judged.refused, judged.violations) == (True, 0, 1, ())
    [told] = judged.excused
    assert plain(told).startswith("held twice for 0.4")
    assert "by ada (fence …000001) and by ben (fence …000002)" in plain(told)


def test_the_same_overlap_without_an_excuse_fails() -> None:
    made = both_sides(write("ben", 2, 0.6, value=1, based_on=0))
    made.excuses = frozenset()
    judged = judge(made)
    assert [each.rule for each in judged.violations] == ["C4"]
    assert judged.excused == ()
    assert not judged.ok


@pytest.mark.requires("R73")
def test_a_stale_write_that_got_through_with_guards_fails_whatever_is_excused() -> None:
    written = write("ben", 2, 0.6, value=2, based_on=0), write("ada", 1, 0.7, value=1, based_on=0)
    judged = judge(both_sides(*written))
    assert {each.rule for each in judged.violations} == {"C5", "C6"}
    assert judged.lost == 1
    assert "1 acknowledged update was lost" in judged.problems


def test_a_fence_that_both_sides_gave_out_fails_whatever_is_excused() -> None:
    judged = judge(both_sides(fence=1))
    assert judged.violations[0].rule == "C1"
    assert "fence 1 was given out twice" in judged.problems[0]


def test_an_excuse_does_not_take_a_loss_out_of_the_scenes_that_are_there_to_show_it() -> None:
    made = both_sides(write("ben", 2, 0.6, value=2, based_on=0), write("ada", 1, 0.7, value=1, based_on=0))
    made.guard = Guard.OFF
    judged = judge(made)
    assert judged.ok
    assert [each.rule for each in judged.losses] == ["C5", "C6"]
    assert [each.rule for each in judged.excused] == ["C4"]


def test_the_timeline_marks_the_moment_of_the_fault_and_the_cut_and_explains_both() -> None:
    made = both_sides(write("ben", 2, 0.6, value=1, based_on=0))
    made.moments += [
        FaultMoment("cut in two", NS // 5),
        FaultMoment("+1 <h>", NS // 4),
        FaultMoment("healed", 3 * NS // 2),
    ]
    made.spans.append(FaultSpan(FaultKind.SPLIT, "", NS // 5, 3 * NS // 2))
    picture = timeline.timeline(made)
    assert picture is not None
    tree = ET.fromstring(picture)
    lines = [each for each in tree.iter("line") if each.get("class") == "moment"]
    assert len(lines) == 4, "one for each, and one in the legend"
    labels = [each for each in tree.iter("text") if each.get("class") == "momenttext"]
    assert [each.text for each in labels] == ["cut in two", "+1 <h>", "healed"]
    assert labels[0].get("y") != labels[1].get("y"), "two that are close together do not cover each other"
    assert {"the fault", "cut in two"} <= {each.text for each in tree.iter("text") if each.get("class") == "small"}
    assert "outage" in {each.get("class") for each in tree.iter("rect")}


def test_what_was_excused_and_when_is_in_the_report_and_in_the_json() -> None:
    made = both_sides(write("ben", 2, 0.6, value=1, based_on=0))
    made.moments.append(FaultMoment("failover", NS // 2))
    told = verdict(judge(made))
    assert "permits under such a fault" in page(told, "today")
    [shown] = as_dict(told)["scenes"]
    assert [each["rule"] for each in shown["excused"]] == ["C4"]
    assert shown["moments"] == [{"what": "failover", "at": 0.5}]
