"""Schedules in an app: on plain functions and on jobs, with their options, and what is refused where it is declared."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane import App, Fatal
from holdfast.plane.schedules.rules import CatchUp, Overlap
from holdfast.types import NS


@pytest.fixture
def app() -> App:
    return App("billing")


def test_a_plain_function_becomes_a_job_named_after_app_and_function(app: App) -> None:
    @app.cron("*/5 * * * *", tz="Europe/Berlin")
    def sweep() -> str:
        return "swept"

    (declared,) = app.schedules
    assert (declared.spec.name, declared.spec.topic, declared.paused) == ("billing.sweep", "billing.sweep", False)
    assert (declared.spec.cron, declared.spec.tz, declared.spec.payload) == ("*/5 * * * *", "Europe/Berlin", None)
    assert app.functions["billing.sweep"].call(None, "ctx") == sweep() == "swept"


def test_a_function_without_parameters_takes_no_payload(app: App) -> None:
    @app.every(60)
    async def sweep(*, ctx: Any) -> Any: ...

    job = app.functions["billing.sweep"]
    assert job.asynchronous
    assert job.parameters.payload((), {}) is None
    job.call({}, "ctx").close()
    with pytest.raises(Fatal, match="takes none"):
        job.call({"n": 1}, "ctx")
    with pytest.raises(BadInput, match="takes none"):
        app.every(60, name="other", payload=1)(sweep)


def test_a_job_keeps_its_topic_and_options(app: App) -> None:
    @app.cron("0 3 * * *", name="nightly", payload={"full": True}, overlap="queue")
    @app.every("6h", offset="30m", jitter=timedelta(seconds=20), payload={"full": False}, pool="money", priority=7)
    @app.job("ledger.close", retries=4)
    def close(full: bool) -> bool:
        return full

    often, nightly = (each.spec for each in app.schedules)
    assert (often.topic, nightly.topic) == ("ledger.close", "ledger.close")
    assert (often.name, nightly.name) == ("ledger.close", "nightly")
    assert (often.every_ns, often.offset_ns, often.jitter_ns) == (6 * 3600 * NS, 1800 * NS, 20 * NS)
    assert (often.payload, often.pool, often.priority, often.max_attempts) == ({"full": False}, "money", 7, 5)
    assert (nightly.payload, nightly.overlap, nightly.catch_up) == ({"full": True}, Overlap.QUEUE, CatchUp.LATEST)
    assert list(app.functions) == ["ledger.close"]


def test_a_function_with_two_schedules_needs_a_name_for_one_of_them(app: App) -> None:
    with pytest.raises(BadInput, match="give each schedule a name= of its own"):

        @app.every(60)
        @app.every(90)
        def sweep() -> None: ...


def test_a_job_below_a_schedule_is_refused(app: App) -> None:
    with pytest.raises(BadInput, match=r"put @app\.cron or @app\.every above @app\.job"):

        @app.job("sweep")
        @app.every(60)
        def sweep() -> None: ...


def test_the_job_of_another_app_is_a_plain_function_here(app: App) -> None:
    other = App("other")

    @app.every(60)
    @other.job("sweep")
    def sweep() -> None: ...

    assert list(app.functions) == ["billing.sweep"]


def needs(invoice: int) -> int:
    return invoice


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 0 * * *", "tz": "Mars"}, "tz"),
        ({"every": "soon"}, "every"),
        ({"every": 60, "offset": 61}, "offset"),
        ({"every": 60, "paused": "no"}, "paused"),
        ({"every": 60, "delay": 3}, "delay"),
        ({"every": 60, "overlap": "never"}, "overlap"),
        ({"every": 60, "catch_up": "all"}, "catch_up"),
        ({"every": 60, "payload": {"invoice": "much"}}, "invoice"),
        ({"every": 60, "payload": {}}, "invoice"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_at_the_declaration(
    app: App, options: dict[str, Any], field: str
) -> None:
    given = {"payload": {"invoice": 1}, **options}
    times = [given.pop(name) for name in ("cron", "every") if name in given]
    declare = app.cron if "cron" in options else app.every
    with pytest.raises(BadInput) as refused:
        declare(*times, **given)(needs)
    assert refused.value.field == field
    assert (app.schedules, dict(app.functions)) == ((), {})


def test_a_function_that_cannot_run_as_a_job_is_refused(app: App) -> None:
    with pytest.raises(BadInput, match="is a generator"):

        @app.every(60)
        def sweep() -> Any:
            yield 1
