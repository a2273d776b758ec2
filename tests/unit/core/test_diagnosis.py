"""What measurements of a store and a host mean, and the guarantee that is left. Pure."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.core.diagnosis import (
    HostFacts,
    Severity,
    StoreFinding,
    grade,
    host_findings,
    limiting,
    percentile,
    worst,
)
from holdfast.types import MS, NS, Guarantee

WELL = HostFacts(
    [MS] * 50, clock_offset_ns=0, expired_after_ns=305 * MS, ttl_tried_ns=300 * MS, starved_ns=MS, fsync_ns=[MS] * 20
)


def judged(**changed: object) -> dict[str, StoreFinding]:

    facts = dataclasses.replace(WELL, **changed)  # type: ignore[arg-type]  # names of fields
    return {each.check: each for each in host_findings(facts, 30 * NS, 2 * NS)}


def test_a_healthy_host_has_no_finding_and_every_check_is_listed() -> None:
    found = judged()
    assert sorted(found) == ["clock", "fsync", "request_timeout", "round_trip", "threads", "ttl_resolution"]
    assert worst([*found.values()]) is Severity.OK
    assert grade(Guarantee.FENCED, found.values()) is Guarantee.FENCED


@pytest.mark.parametrize(
    ("check", "severity", "changed"),
    [
        ("round_trip", Severity.WARNING, {"round_trips_ns": [MS] * 40 + [1600 * MS] * 10}),
        ("clock", Severity.WARNING, {"clock_offset_ns": -3 * NS, "clock_error_ns": NS}),
        ("clock", Severity.OK, {"clock_offset_ns": 3 * NS, "clock_error_ns": 2 * NS}),
        ("ttl_resolution", Severity.WARNING, {"expired_after_ns": 9 * NS}),
        ("ttl_resolution", Severity.CRITICAL, {"expired_after_ns": 200 * MS}),
        ("threads", Severity.WARNING, {"starved_ns": 4 * NS}),
        ("fsync", Severity.WARNING, {"fsync_ns": [150 * MS] * 20}),
    ],
)
def test_each_measurement_beyond_its_limit_is_a_finding_with_reason_and_fix(
    check: str, severity: Severity, changed: dict[str, object]
) -> None:
    found = judged(**changed)
    assert found[check].severity is severity
    assert bool(found[check].reason and found[check].fix) is (severity is not Severity.OK)
    assert [each for each in found.values() if each.check != check and each.severity is not Severity.OK] == []


def test_a_request_timeout_that_hides_a_missed_renewal_is_a_finding() -> None:
    found = {each.check: each for each in host_findings(WELL, 3 * NS, 2 * NS)}
    assert found["request_timeout"].severity is Severity.WARNING
    assert found["request_timeout"].fix == "connect(request_timeout=1), or use a TTL of at least 6 s"


def test_the_lowest_limit_decides_the_grade_and_names_its_finding() -> None:
    mild = StoreFinding("a", Severity.WARNING, "", limit=Guarantee.EXCLUSIVE_IF_CLOCK_SANE)
    bad = StoreFinding("b", Severity.CRITICAL, "", limit=Guarantee.EFFICIENCY_ONLY)
    note = StoreFinding("c", Severity.NOTE, "")
    assert grade(Guarantee.FENCED, [note]) is Guarantee.FENCED
    assert grade(Guarantee.FENCED, [note, mild]) is Guarantee.EXCLUSIVE_IF_CLOCK_SANE
    assert grade(Guarantee.FENCED, [bad, mild]) is Guarantee.EFFICIENCY_ONLY
    assert grade(Guarantee.EFFICIENCY_ONLY, [mild]) is Guarantee.EFFICIENCY_ONLY
    assert limiting([note, mild, bad], Guarantee.FENCED) is mild
    assert limiting([note, mild, bad], Guarantee.EXCLUSIVE_IF_CLOCK_SANE) is bad
    assert limiting([note], Guarantee.FENCED) is None
    assert worst([note, bad, mild]) is Severity.CRITICAL
    assert worst([]) is Severity.OK


@pytest.mark.parametrize(("per_cent", "value"), [(0, 1), (50, 51), (99, 100), (100, 100)])
def test_a_percentile_is_one_of_the_values(per_cent: int, value: int) -> None:
    assert percentile(range(1, 101), per_cent) == value
    assert percentile([], per_cent) == 0
