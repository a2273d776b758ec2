"""What a schedule may be: options, their errors, its document, and the ids of its jobs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane.model.records import ID_CHARS_MAX
from holdfast.plane.schedules.model import ScheduleSpec, is_due_id, job_id, made_spec, spec_of
from holdfast.plane.schedules.rules import CatchUp, Overlap
from holdfast.types import NS


def made(**options: Any) -> ScheduleSpec:
    return made_spec(**{"name": "nightly", "topic": "report.build", "cron": "0 3 * * *", **options})


def test_durations_are_seconds_text_or_a_timedelta() -> None:
    for every in (600, "10m", timedelta(minutes=10)):
        spec = made(cron=None, every=every, offset="90s", jitter=5, timeout="1m", deadline=3600)
        assert (spec.every_ns, spec.offset_ns, spec.jitter_ns) == (600 * NS, 90 * NS, 5 * NS)
        assert (spec.timeout_ns, spec.deadline_ns) == (60 * NS, 3600 * NS)
        assert spec.expression == "every 10m + 90s"


def test_a_stored_document_gives_the_same_schedule() -> None:
    spec = made(tz="Europe/Berlin", payload={"full": True}, labels={"team": "data"}, overlap="queue", catch_up="none")
    document = json.loads(spec.text())
    assert spec_of("default", "nightly", document) == spec
    assert spec_of("default", "nightly", {**document, "of_a_newer_version": 1}) == spec
    assert (spec.overlap, spec.catch_up) == (Overlap.QUEUE, CatchUp.NONE)
    assert spec.expression == "0 3 * * * (Europe/Berlin)"


def test_the_job_of_a_due_time_names_it() -> None:
    spec = made(pool="reports", labels={"team": "data"}, deadline=60, priority=7)
    wanted = spec.submission("a-job", 1_700_000_000 * NS, 5 * NS, "ann")
    assert wanted.labels == {
        "team": "data",
        "holdfast.schedule": "nightly",
        "holdfast.due": "2023-11-14T22:13:20Z",
        "holdfast.pool": "reports",
    }
    assert (wanted.topic, wanted.priority, wanted.deadline_ns, wanted.id) == ("report.build", 7, 65 * NS, "a-job")
    assert wanted.submitted_by == "ann"


@pytest.mark.parametrize(
    ("options", "field", "problem"),
    [
        ({"name": ""}, "name", "not the name"),
        ({"name": "a:b"}, "name", "not the name"),
        ({"name": "a" * 101}, "name", "not the name"),
        ({"name": "a" * 100, "tenant": "t" * 120}, "name", "too long"),
        ({"topic": "with space"}, "topic", "not usable"),
        ({"tenant": ""}, "tenant", "not a name"),
        ({"cron": None}, "cron", "exclude each other"),
        ({"every": 60}, "cron", "exclude each other"),
        ({"cron": None, "every": 0}, "every", "out of range"),
        ({"cron": None, "every": 0.5}, "every", "out of range"),
        ({"cron": None, "every": 1.5}, "every", "whole number of seconds"),
        ({"cron": None, "every": "soon"}, "every", "'soon'"),
        ({"cron": None, "every": 60, "offset": 60}, "offset", "out of range"),
        ({"cron": None, "every": 60, "tz": "Europe/Berlin"}, "tz", "for cron expressions"),
        ({"offset": 60}, "offset", "for intervals"),
        ({"tz": "Mars/Olympus"}, "tz", "not a time zone"),
        ({"cron": "* * * * *", "jitter": 60}, "jitter", "not shorter"),
        ({"jitter": -1}, "jitter", "out of range"),
        ({"overlap": "maybe"}, "overlap", "not known"),
        ({"catch_up": ""}, "catch_up", "not known"),
        ({"catch_up": "all"}, "catch_up", "would skip all but the first"),
        ({"catch_up": "all", "overlap": "queue"}, "catch_up", "would skip all but the first"),
        ({"catch_up_max": 0}, "catch_up_max", "out of range"),
        ({"catch_up_max": 101}, "catch_up_max", "out of range"),
        ({"payload": object()}, "payload", "JSON"),
        ({"payload": float("nan")}, "payload", "JSON"),
        ({"pool": "no pool"}, "pool", "not a name"),
        ({"priority": 101}, "priority", "out of range"),
        ({"max_attempts": 0}, "max_attempts", "out of range"),
        ({"timeout": 0}, "timeout", "out of range"),
        ({"deadline": -5}, "deadline", "out of range"),
        ({"labels": {"holdfast.due": "x"}}, "labels", "reserved"),
        ({"labels": {str(n): "x" for n in range(51)}}, "labels", "are 51"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_with_its_name(
    options: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(BadInput, match=problem) as refused:
        made(**options)
    assert refused.value.field == field


def test_the_ids_of_jobs_differ_for_each_tenant_name_and_due_time_and_are_reserved() -> None:
    ids = {job_id(tenant, name, at * NS) for tenant in ("a", "a:b") for name in ("c", "b.c") for at in (0, 1, 86_400)}
    assert len(ids) == 12
    assert all(is_due_id(each) and len(each) <= ID_CHARS_MAX for each in ids)
    assert job_id("default", "nightly", 1_700_000_000 * NS) == "schedule:default:nightly@20231114T221320Z"
    assert not is_due_id("order-7")
    assert not is_due_id("schedule:default:nightly")
