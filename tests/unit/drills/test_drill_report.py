"""The report is one well-formed page that needs nothing from anywhere, whatever it is told."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from holdfast.drills.catalog import DRILLS, NAMES
from holdfast.drills.model import Guard, MeasuredTakeover
from holdfast.drills.report import charts, timeline
from holdfast.drills.report.html import page
from holdfast.drills.report.json import as_dict
from holdfast.drills.verdict.leases import judge
from holdfast.types import NS
from unit.drills.drill_scenes import full_scene, grant, guarded, overtaken, scene, verdict

VOID = {"meta", "br", "hr", "img", "link", "input"}
LOADS = {"src", "href", "xlink:href", "data", "action", "srcset", "poster"}


class Checked(HTMLParser):
    """Every element is closed in order, and none of them loads anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not LOADS & {name for name, _ in attributes}, (tag, attributes)
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not LOADS & {name for name, _ in attributes}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def made() -> str:
    return page(verdict(judge(full_scene(Guard.OFF, overtaken())), judge(full_scene(Guard.ON, guarded()))), "today")


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = made()
    checked = Checked()
    checked.feed(text)
    checked.close()
    assert checked.open == []
    assert not {"script", "iframe", "link", "img", "object"} & set(checked.seen)
    assert "url(" not in text.replace("url(#hatch)", "")
    assert "@import" not in text
    assert re.findall(r"https?://", text) == []
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_everything_that_came_from_others_is_escaped() -> None:
    text = made()
    assert "<scene>" not in text
    assert "A &lt;scene&gt;" in text
    assert "a &lt;store&gt;" in text
    assert "holder that was &lt;stopped&gt;" in text


def test_the_page_says_what_matters() -> None:
    text = made()
    assert "FAIL" in text  # one of the claims is broken
    for part in (
        "Holders of the lock",
        "Lost updates",
        "Takeovers against the SLO",
        "SLO 2 s",
        "History:",
        "Repeat this drill",
        "holdfast drill pause --ttl 1",
        "Left out: a &amp; b.",
    ):
        assert part in text, part
    assert "PASS" in page(verdict(judge(scene(Guard.ON, guarded()))), "today")


def test_the_timeline_is_xml_and_shows_holds_pauses_losses_and_refusals() -> None:
    for history, kinds in ((overtaken(), {"lost", "accepted"}), (guarded(), {"refused", "accepted"})):
        picture = timeline.timeline(full_scene(Guard.OFF, history))
        assert picture is not None
        tree = ET.fromstring(picture)
        classes = {element.get("class") for element in tree.iter()}
        assert kinds | {"hold", "paused", "hatched", "outage", "fence", "death"} <= classes
        words = {element.text for element in tree.iter("text")}
        assert {"ada", "ben", "fence"} <= words


def test_there_is_no_timeline_where_there_is_nothing_or_too_much_to_see() -> None:
    assert timeline.timeline(scene(None, overtaken())) is None
    assert timeline.timeline(scene(Guard.ON, [])) is None
    many = [grant(f"w{number}", number + 1, number) for number in range(timeline.LANES_MAX + 1)]
    assert timeline.timeline(scene(Guard.ON, many)) is None


def test_takeovers_beyond_the_slo_stand_out_and_many_are_cut_to_the_slowest() -> None:
    found = [MeasuredTakeover(f"no {number}", 0, number * NS, 50 * NS) for number in range(1, 60)]
    picture = charts.takeovers(found)
    assert picture is not None
    tree = ET.fromstring(picture)
    classes = [element.get("class") for element in tree.iter("rect")]
    assert (classes.count("ill"), len(classes)) == (9, charts.TAKEOVERS_MAX)
    assert charts.takeovers([]) is None
    assert charts.curves([], []) is None


def test_a_verdict_is_there_for_programs_too() -> None:
    told = as_dict(verdict(judge(full_scene(Guard.OFF, overtaken()))))
    [shown] = told["scenes"]
    assert (told["passed"], shown["lost"], shown["guards"], shown["slowest_takeover"]) == (False, 1, "off", 1.0)
    assert [each["rule"] for each in shown["losses"]] == ["C5", "C6"]
    assert len(shown["losses"][1]["records"]) == 2


@pytest.mark.parametrize("drill", DRILLS, ids=lambda each: each.name)
def test_every_drill_is_listed_with_what_it_shows(drill: object) -> None:
    assert getattr(drill, "shows", None) == NAMES[getattr(drill, "name", "")]


def test_the_list_of_names_has_nothing_that_cannot_be_played() -> None:
    assert [each.name for each in DRILLS] == list(NAMES)
