"""A decision is about what was requested, to the last column: whatever was changed meanwhile, it is refused.

Everything that is stored about a request is changed, one column after the other, in the job and in the note that it
waits: before the first read, and between the read and the commit. What is not in a digest is in a list here, with the
reason, so that a new column belongs to one of them.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RowMissing
from holdfast.plane.approvals.rows import request_of
from holdfast.plane.approvals.rules import Approval, ApprovalConflict, ApprovalStatus, ApprovalVerdict, SelfApproval
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job
from holdfast.plane.workflows.core.run import CheckRun
from holdfast.types import NS
from support.fixtures.workflows import FlowReplica, FlowStage
from support.harness.approvals import GATED, asked, decide, stage_of, staged, untouched

pytestmark = pytest.mark.threat("X12")

REFUSED = (ApprovalConflict, SelfApproval, RowMissing)
WRITTEN = {
    "plane_job": {
        *("state", "attempt", "version", "updated_ns", "fence", "run_fence", "worker", "result", "reason", "code"),
        "queue",  # in which queue it waits
    },
    "plane_approval": {
        *("status", "revision", "decided_by", "decided_ns", "note", "fence"),
        "request",  # the digest itself; changed it fits nothing
    },
}
KINDS: dict[str, type[Job | Approval]] = {"plane_job": Job, "plane_approval": Approval}
DOCUMENTS = {"payload", "labels", "message"}
NAMES = {"plane_job": "id", "plane_approval": "job"}


def said(table: str) -> list[str]:
    """What a request is made of, by the columns of a table. Its name is how it is found: another is another request."""
    found = [each.name for each in fields(KINDS[table])]
    return [name for name in found if name not in WRITTEN[table] and name != NAMES[table]]


def other(column: str, value: Any) -> Any:
    """Another value that the column can have."""
    if column in DOCUMENTS:
        return json.dumps({"not": "what was asked for"})
    if column == "gate":
        return 1 - value
    if isinstance(value, int) or column.endswith("_ns"):
        return (value or 0) + 3_600 * NS  # a time as well as a number
    return f"{value or ''}x"


async def written(replica: FlowReplica, table: str, job: str, column: str, value: Any) -> Any:
    """Change a column in the database; returns the old value."""
    name = NAMES[table]
    (before,) = await replica.query(f"SELECT {column} AS found FROM {table} WHERE {name} = :job", job=job)
    kind = "BIGINT" if column.endswith("_ns") else "TEXT"
    new = f"CAST(:value AS {kind})" if value is None or column.endswith("_ns") else ":value"
    statement, values = f"UPDATE {table} SET {column} = {new} WHERE {name} = :job", {"value": value, "job": job}
    await replica.helper.database.write(lambda tx: tx.query(statement, values))
    return before["found"]


async def changed(replica: FlowReplica, table: str, job: str, column: str) -> Any:
    (row,) = await replica.query(f"SELECT {column} AS found FROM {table} WHERE {NAMES[table]} = :job", job=job)
    return await written(replica, table, job, column, other(column, row["found"]))


async def waiting_for_somebody(replica: FlowReplica, kind: str) -> str:
    if kind == "job":
        more = {"labels": {"size": "small"}, "idempotency_key": "once", "timeout_ns": NS, "deadline_ns": 4 * 10**18}
        return (await asked(replica, **more)).id
    await replica.define(GATED)
    run = await replica.start("refund", {"amount": 12})
    await replica.engine.move(run, CheckRun())
    return f"{run}:agreed@1"


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["job", "gate"])
async def test_of_a_request_that_was_changed_anywhere_nothing_is_decided(flow_stage: FlowStage, kind: str) -> None:
    replica = await stage_of(flow_stage)
    job = await waiting_for_somebody(replica, kind)
    places = [*((table, column) for table in KINDS for column in said(table)), ("plane_approval", "request")]
    for (table, column), verdict in zip(places, cycle(ApprovalVerdict)):
        before = await changed(replica, table, job, column)
        with pytest.raises(REFUSED):
            await decide(replica, job, verdict)
        await written(replica, table, job, column, before)
    await untouched(replica, job)
    assert (await decide(replica, job)).taken, "once it is what it was, it can be decided"


@pytest.mark.asyncio
async def test_what_is_changed_between_the_look_and_the_commit_is_found_there(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    job = await waiting_for_somebody(replica, "job")
    approvals = staged(replica.components)
    for table in KINDS:
        for column in said(table):
            if (table, column) == ("plane_approval", "snapshot"):
                continue  # a decision replaces it, by the rules that it was judged by
            before: list[Any] = []

            async def swap(table: str = table, column: str = column, before: list[Any] = before) -> None:
                if not before:
                    before.append(await changed(replica, table, job, column))

            approvals.lease, approvals.looked = None, swap
            with pytest.raises(REFUSED):
                await approvals.decide(job, ApprovalVerdict.APPROVE, actor="boss")
            await written(replica, table, job, column, before[0])
    await untouched(replica, job)


# The digest alone, for every value that a field can have.

_TEXT = st.text(max_size=8)
_NUMBER = st.integers(-(2**63), 2**63 - 1)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBER | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("payload", "message"), _JSON),
    "labels": st.dictionaries(_TEXT, _TEXT, max_size=3),
    "gate": st.booleans(),
}
JOB = Job("j1", "acme", "bank.pay", "default", JobState.APPROVAL_REQUIRED, 0, 0, 3, {"amount": 12}, 5, 5, 1, None)
NOTE = Approval("j1", "acme", False, ApprovalStatus.WAITING, "", "payments", "Check.", "", "rules", "ada", 0, 5)


def strategy_of(table: str, name: str) -> st.SearchStrategy[Any]:
    if name in _VALUES:
        return _VALUES[name]
    value = getattr(JOB if table == "plane_job" else NOTE, name)
    return (_NUMBER if isinstance(value, int) or name.endswith("_ns") else _TEXT) | (
        st.none() if value is None else st.nothing()
    )


_CHANGES = st.one_of(
    *(
        st.tuples(st.just(table), st.just(name), strategy_of(table, name))
        for table in KINDS
        for name in (*said(table), NAMES[table])
    )
)


def _differs(one: Any, two: Any) -> bool:
    """Whether JSON tells them apart: 1, 1.0 and true are three things there."""
    return json.dumps(one, sort_keys=True) != json.dumps(two, sort_keys=True)


@given(_CHANGES)
def test_every_field_of_a_request_is_in_its_digest(change: tuple[str, str, Any]) -> None:
    table, name, value = change
    job, note = (replace(JOB, **{name: value}), NOTE) if table == "plane_job" else (JOB, replace(NOTE, **{name: value}))
    before = getattr(JOB if table == "plane_job" else NOTE, name)
    assert (request_of(job, note) != request_of(JOB, NOTE)) is _differs(value, before)


def test_what_the_way_of_a_job_writes_is_not_part_of_the_request() -> None:
    something: Any = "x"
    for name in WRITTEN["plane_job"]:
        assert request_of(replace(JOB, **{name: something}), NOTE) == request_of(JOB, NOTE)
    for name in WRITTEN["plane_approval"]:
        assert request_of(JOB, replace(NOTE, **{name: something})) == request_of(JOB, NOTE)
