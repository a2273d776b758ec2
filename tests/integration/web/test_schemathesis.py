"""The API against its own description: generated requests, right and wrong, get answers that the description allows.

The server is real, and in this process. Checked for each answer: no server error; status, content type, headers and
body are as described; wrong data is refused and right data is not; methods that are not described are refused; what
demands a token does not work without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import CheckFunction
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance

from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import CheckRun
from holdfast.plane.workflows.engine import WorkflowEngine
from holdfast.web.app import description
from support.campaigns import campaign
from support.harness.web import TOKENS, UNBOUND, Served, Stage

EXAMPLES = campaign(6, 12)  # of each operation, besides those at the borders of every field
PATIENCE_S = 0.01

schema = schemathesis.openapi.from_dict(
    description(),
    config=SchemathesisConfig(
        projects=ProjectsConfig(default=ProjectConfig(generation=GenerationConfig(allow_x00=False)))
    ),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running plane that has something in it."""
    with Served(tmp_path_factory.mktemp("plane")) as running:
        running.run(running.stage.submit(job="known"))
        running.run(running.stage.end(running.run(running.stage.submit(job="dead"))))
        running.run(_flows(running.stage))
        yield running


async def _flows(stage: Stage) -> None:
    flows = stage.service.flows
    await flows.define(UNBOUND, from_document({"name": "known", "steps": {"ask": {"kind": "approval"}}}))
    await flows.start(UNBOUND, "known", run_id="known")
    await WorkflowEngine(flows.store, stage.service.parts.locks, stage.service.parts.bus).move("known", CheckRun())


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case: schemathesis.Case[Any], served: Served) -> None:
    # The description cannot express five rules: a cursor is opaque; an idempotency key given twice has to be the same
    # in both places; workflow definitions and cron expressions are languages; a jitter has to be below the
    # delay in the plane's settings; the times of a schedule depend on each other.
    cursor = "cursor" in (case.query or {})
    two_keys = (
        "idempotency-key" in (case.headers or {}) and isinstance(case.body, dict) and "idempotency_key" in case.body
    )
    flow = isinstance(case.body, dict) and "definition" in case.body
    jitter = case.operation.path.endswith("/policy/busy_jitter")
    times = case.method == "PUT" and "/schedules/" in case.operation.path and not simple(case.body)
    excepted = cursor or two_keys or flow or jitter or times
    excluded: list[CheckFunction] = [positive_data_acceptance] if excepted else []
    watches = "/watch/" in case.operation.path
    if isinstance(case.body, dict):
        wait = case.body.get("timeout", 20.0 if watches else None)
        if isinstance(wait, int | float) and 0 < wait <= (60 if watches else 30):
            case.body["timeout"] = PATIENCE_S  # a wait for something that does not change takes all of it
    answer = case.call_and_validate(
        base_url=served.url,
        headers={"Authorization": f"Bearer {TOKENS['admin']}"},
        excluded_checks=excluded,
    )
    assert answer.status_code < 500


def simple(schedule: Any) -> bool:
    """Whether it is a schedule whose times are right by their description alone: every so many whole seconds."""
    return (
        isinstance(schedule, dict)
        and schedule.get("cron") is None
        and isinstance(every := schedule.get("every"), int | float)
        and every % 1 == 0
        and not schedule.get("offset")
        and not schedule.get("jitter")
        and schedule.get("tz", "UTC") == "UTC"
        and (schedule.get("catch_up") != "all" or schedule.get("overlap") == "allow")
    )
