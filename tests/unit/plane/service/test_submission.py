"""Many submissions in one call: the number of their transactions and reads, and their answers when one fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BackendError, Unavailable
from holdfast.plane.approvals.rules import parse_rules
from holdfast.plane.fleet.registry import View
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.service.service import Caller, NotAllowed, Service
from support.harness.web import service_at

ANN = Caller("ann")
RULES = parse_rules(
    [
        {"name": "payments", "topics": "bank.*", "message": "Check the amount."},
        {"name": "frozen", "topics": "frozen.*", "effect": "deny"},
    ]
)


def counted(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one with each transaction that writes."""
    writes: list[str] = []
    database = service.parts.database
    write = database.write

    async def counting(*args: Any, **kwargs: Any) -> Any:
        writes.append("write")
        return await write(*args, **kwargs)

    monkeypatch.setattr(database, "write", counting)
    return writes


@pytest.mark.asyncio
async def test_what_may_go_is_one_transaction_and_what_waits_for_a_person_is_made_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service_at(tmp_path, rules=RULES) as service:
        writes = counted(service, monkeypatch)
        wanted = [Submission("sum", number) for number in range(60)]
        wanted[7], wanted[20], wanted[33] = Submission("bank.pay"), Submission("frozen.one"), Submission("bank.refund")
        answers = await service.submit_many(ANN, wanted)
        assert len(writes) == 1 + 2
        assert isinstance(answers[20], NotAllowed)
        made = {at: each for at, each in enumerate(answers) if isinstance(each, tuple)}
        assert len(made) == 59
        assert {at for at, (job, _) in made.items() if job.state is JobState.APPROVAL_REQUIRED} == {7, 33}
        assert all(job.payload == at for at, (job, _) in made.items() if job.state is JobState.PENDING)
        assert {job.submitted_by for job, _ in made.values()} == {"ann"}
        waiting = await service.flows.approvals(ANN)
        assert {each.job for each in waiting.items} == {made[7][0].id, made[33][0].id}


@pytest.mark.asyncio
async def test_a_store_in_trouble_is_asked_once_and_everybody_is_told(
    plane_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    async def away(*, fresh: bool = False) -> View:
        asked.append(fresh)
        raise Unavailable("the database does not answer")

    monkeypatch.setattr(plane_service.parts.workers, "view", away)
    answers = await plane_service.submit_many(ANN, [Submission(f"topic-{number}") for number in range(40)])
    assert asked == [False]
    assert len(answers) == 40
    assert all(isinstance(each, BackendError) for each in answers)


@pytest.mark.asyncio
async def test_no_submission_is_no_transaction(plane_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = counted(plane_service, monkeypatch)
    assert await plane_service.submit_many(ANN, []) == []
    assert writes == []


@pytest.mark.asyncio
async def test_an_error_that_is_no_answer_is_raised(plane_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(plane_service.parts.database, "write", broken)
    with pytest.raises(LookupError, match="a bug"):
        await plane_service.submit_many(ANN, [Submission("sum"), Submission("sum")])
