"""Lists of runs by status, workflow and tenant, page by page. On SQLite and Postgres."""

from __future__ import annotations

import itertools

import pytest

from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.model.paging import AFTER_ALL
from holdfast.plane.workflows.core.run import RunStatus
from support.fixtures.workflows import ASKER, FlowReplica, FlowStage

pytestmark = pytest.mark.asyncio

WORKFLOWS = ("order", "orders", "refund")
ORDER = "name: order\nsteps:\n  pay: {kind: job, topic: pay}\n"


async def variety(replica: FlowReplica) -> list[Row]:
    """Runs of every status, workflow and tenant; some at the same time. The newest first."""
    row = (await replica.query("SELECT * FROM plane_run"))[0]
    kinds = itertools.product([str(each) for each in RunStatus], WORKFLOWS, ("acme", "globex"))
    rows: list[Row] = [
        {**row, "id": f"r{n:02}", "created_ns": n // 2, "status": status, "workflow": workflow, "tenant": tenant}
        for n, (status, workflow, tenant) in enumerate(kinds)
    ]

    async def work(tx: Tx) -> None:
        await tx.query("DELETE FROM plane_run")
        names = list(rows[0])
        places = ", ".join(f":{name}" for name in names)
        await tx.query_many(f"INSERT INTO plane_run ({', '.join(names)}) VALUES ({places})", rows)

    await replica.components.database.write(work)
    return rows[::-1]


async def test_pages_are_newest_first_filtered_and_without_gaps(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(ORDER)
    await replica.start("order")
    rows = await variety(replica)
    statuses = [None, *map(str, RunStatus)]
    for status, workflow, tenant in itertools.product(statuses, (None, *WORKFLOWS, "none"), (None, "acme")):
        wanted = {"status": status, "workflow": workflow, "tenant": tenant}
        expected = [row["id"] for row in rows if all(each in (None, row[name]) for name, each in wanted.items())]
        seen: list[str] = []
        after = AFTER_ALL
        while True:
            page = await replica.components.flows.runs(ASKER, **wanted, after=after, limit=2)
            seen += [each.id for each in page.items]
            if page.after is None:
                break
            after = page.after
        assert seen == expected, wanted
