"""Due times of cron expressions: fields, time zones, both changes for daylight-saving time, and what is refused."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, Misconfigured
from holdfast.plane.schedules import timetable
from holdfast.plane.schedules.timetable import Cron
from holdfast.types import NS
from support.campaigns import campaign

BERLIN, NEW_YORK, SANTIAGO, LORD_HOWE = "Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe"


def ns(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp()) * NS


def due(expression: str, zone: str, start: str, most: int = 3) -> list[str]:
    """The next due times as local times with their offset."""
    found = islice(Cron(expression, zone).following(ns(start)), most)
    return [datetime.fromtimestamp(each / NS, ZoneInfo(zone)).isoformat(timespec="minutes") for each in found]


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("*/5 * * * *", "2026-11-20T00:05:00+00:00"),
        ("0 9 * * MON-FRI", "2026-11-20T09:00:00+00:00"),
        ("0 0 1 jan *", "2027-01-01T00:00:00+00:00"),
        ("0 12 L * *", "2026-11-30T12:00:00+00:00"),
        ("0 12 * * 5#2", "2026-12-11T12:00:00+00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00:00+00:00"),
        ("0 0 13 * 5", "2026-11-27T00:00:00+00:00"),  # both days are restricted: either
        ("@hourly", "2026-11-20T01:00:00+00:00"),
        ("@Weekly", "2026-11-22T00:00:00+00:00"),
    ],
)
def test_the_first_due_time_of_an_expression(expression: str, first: str) -> None:
    assert next(Cron(expression).following(ns("2026-11-20T00:00:00+00:00"))) == ns(first)


@pytest.mark.parametrize(
    ("expression", "zone", "start", "expected"),
    [
        # The hour from 2 to 3 does not exist: a fixed time runs right after the gap.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("15,45 2 * * *", BERLIN, "2026-03-28T12:00:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:15+02:00"]),
        ("0 2-3 * * *", BERLIN, "2026-03-28T12:00:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07T12:00:00-05:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
        # The hour from 2 to 3 comes twice: a fixed time runs at the first one.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
        ("0 0 * * *", SANTIAGO, "2026-09-05T12:00:00-04:00", ["2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"]),
        ("30 23 * * *", SANTIAGO, "2026-04-04T12:00:00-03:00", ["2026-04-04T23:30-03:00", "2026-04-05T23:30-04:00"]),
        # A gap and an overlap of half an hour.
        ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00:00+10:30", ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04T12:00:00+11:00", ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]),
        # Other expressions go by elapsed time.
        ("*/30 * * * *", BERLIN, "2026-03-29T01:15:00+01:00", ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00"]),
        ("0 * * * *", BERLIN, "2026-10-25T01:30:00+02:00", ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"]),
        ("*/30 2 * * *", BERLIN, "2026-03-28T12:00:00+01:00", ["2026-03-30T02:00+02:00", "2026-03-30T02:30+02:00"]),
    ],
)
def test_due_times_around_a_change_for_daylight_saving_time(
    expression: str, zone: str, start: str, expected: list[str]
) -> None:
    assert due(expression, zone, start, len(expected)) == expected


ZONES = ("UTC", BERLIN, NEW_YORK, SANTIAGO, LORD_HOWE, "Africa/Casablanca", "Asia/Kolkata")
EXPRESSIONS = (
    "30 2 * * *",
    "15,45 1-3 * * *",
    "0 0 * * *",
    "*/20 * * * *",
    "*/30 2 * * *",
    "59 23 L * *",
    "0 */6 * * 0",
)


@given(
    zone=st.sampled_from(ZONES),
    expression=st.sampled_from(EXPRESSIONS),
    start=st.integers(ns("2025-01-01T00:00:00+00:00") // NS, ns("2027-01-01T00:00:00+00:00") // NS),
    inside=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=campaign(60, 2000), deadline=None)
def test_due_times_do_not_depend_on_where_the_search_begins(
    zone: str, expression: str, start: int, inside: float
) -> None:
    cron = Cron(expression, zone)
    found = list(islice(cron.following(start * NS), 6))
    assert found == sorted(set(found))
    assert found[0] > start * NS
    for earlier, later in zip([start * NS, *found], found, strict=False):
        between = earlier + int((later - earlier) * inside)
        assert next(cron.following(between)) == later


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 * * * *", "has 6 fields"),
        ("61 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 0 * *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * 9", "bad day-of-week"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 31 4,6,9,11 *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("0 0 L-3 * *", "bad day-of-month"),
        ("0 0 * * 5L/2", "bad day-of-week"),
        ("@reboot", "is not known"),
        ("½ * * * *", "not a cron expression"),
        ("* * * * *\0", "not a cron expression"),
        (f"{','.join(map(str, range(60)))},{','.join(map(str, range(60)))} * * * *", "characters long"),
        (5, "not a cron expression"),
        (None, "not a cron expression"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused(expression: object, problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as refused:
        Cron(expression)  # type: ignore[arg-type]
    assert refused.value.field == "cron"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "/etc/localtime", "", "Europe", "x" * 100, None, 1])
def test_a_zone_that_is_not_known_is_refused(zone: object) -> None:
    with pytest.raises(BadInput, match="not a time zone") as refused:
        Cron("@daily", zone)  # type: ignore[arg-type]
    assert refused.value.field == "tz"


@pytest.fixture
def without_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system without a time zone database, and without the package tzdata."""

    def missing(name: str) -> ZoneInfo:
        raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {name}")

    timetable._zone.cache_clear()
    monkeypatch.setattr(timetable, "ZoneInfo", missing)
    yield
    timetable._zone.cache_clear()


@pytest.mark.usefixtures("without_zones")
def test_without_a_time_zone_database_utc_works_and_other_zones_name_the_package_to_install() -> None:
    assert next(Cron("@hourly").following(0)) == 3600 * NS
    with pytest.raises(Misconfigured, match="pip install tzdata"):
        Cron("@hourly", BERLIN)


def test_without_cronsim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cronsim", None)
    with pytest.raises(Misconfigured, match=r"holdfast\[plane\]"):
        Cron("@hourly")


def test_due_times_end_with_the_calendar() -> None:
    last = datetime(9986, 12, 31, tzinfo=UTC)
    assert list(Cron("@yearly").following(round(last.timestamp()) * NS + 10**18)) == []
