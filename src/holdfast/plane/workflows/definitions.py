"""Workflow definitions in the database: kept in versions that never change, so that a run knows what it follows.

Promises: keeping a definition that is already the newest gives that version again; otherwise it becomes the next one,
also when several processes keep definitions at once. A tenant sees its own and those of everybody (`*`), and its own
comes first where both have a name. A version that was read is remembered, since it cannot change. What is remembered is
bounded in characters; the version that was read longest ago goes first. Pages are of outlines, which are kept beside
them, so that neither size nor cost of a page depends on how large definitions are.

Clock: the wall clock, for people.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace
from typing import Final

from holdfast.core.json_size import WRAPPED_MAX
from holdfast.core.ports import Clock
from holdfast.errors import Unavailable
from holdfast.plane.db.migrations import script
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.records import beginning, encoded
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.definition_codec import as_document, from_document
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.plane.workflows.core.validation import accept_document, check_workflow
from holdfast.plane.workflows.summaries import WorkflowOutline, workflow_outline_of, workflow_outline_text
from holdfast.types import check_label

ALL_TENANTS: Final = "*"
REMEMBERED_CHARS_MAX: Final = 4_000_000  # of the texts of definitions that a process remembers
_TRIES: Final = 10

_INSERT: Final = sql("workflow_insert")
_GET: Final = sql("workflow_get")
_NEWEST: Final = sql("workflow_newest")
_NUMBERED: Final = sql("workflow_numbered")


@dataclass(frozen=True, slots=True)
class Definition:
    """A workflow as it is kept."""

    scope: str  # a tenant, or `*`
    workflow: Workflow
    digest: str
    created_ns: int
    created_by: str

    @property
    def outline(self) -> WorkflowOutline:
        """As lists have it."""
        kept = self.workflow
        return WorkflowOutline(
            self.scope,
            kept.name,
            kept.version,
            kept.risk,
            len(kept.steps),
            beginning(kept.description),
            self.digest,
            self.created_ns,
            self.created_by,
        )


class Definitions:
    """The definitions of one plane."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._remembered: dict[tuple[str, str, int], Definition] = {}
        self._sizes: dict[tuple[str, str, int], int] = {}  # of their texts
        self._size = 0
        self._reading = asyncio.Semaphore()

    async def accept(self, document: object, source: str) -> Workflow:
        """The definition that a document is, or `BadWorkflow`.

        It is read in a thread, one document at a time: a long one takes seconds.
        """
        async with self._reading:
            return await asyncio.to_thread(accept_document, document, source)

    async def keep(
        self, workflow: Workflow, *, scope: str = ALL_TENANTS, actor: str = "", accepted: bool = False
    ) -> tuple[Definition, bool]:
        """Keep a definition, or `BadWorkflow`. Also returns whether it is a new version.

        `accepted`: it comes from `accept`, and need not be checked again.
        """
        check_scope(scope)
        if not accepted and (problems := check_workflow(workflow)):
            raise BadWorkflow(workflow.name, problems)
        body = encoded("workflow", as_document(replace(workflow, version=0)), depth=WRAPPED_MAX)
        digest = hashlib.sha256(body.encode()).hexdigest()

        async def work(tx: Tx) -> tuple[Row, bool] | None:
            newest = await tx.query(_NEWEST, {"tenant": scope, "name": workflow.name})
            last = newest[0] if newest and newest[0]["scope"] == scope else None
            if last is not None and last["digest"] == digest:
                return last, False
            values = {
                "scope": scope,
                "name": workflow.name,
                "version": 1 if last is None else last["version"] + 1,
                "digest": digest,
                "body": body,
                "outline": workflow_outline_text(workflow.risk, len(workflow.steps), workflow.description),
                "now_ns": self._clock.now().wall,
                "created_by": actor,
            }
            made = await tx.query(_INSERT, values)
            return (made[0], True) if made else None

        for _ in range(_TRIES):  # somebody else may have made the same version at the same moment
            if (kept := await self._database.write(work)) is not None:
                return self._definition(kept[0]), kept[1]
        raise Unavailable(f"workflow {workflow.name} is being changed by many at once; try again")

    async def find(self, tx: Tx, tenant: str, name: str, version: int | None = None) -> Definition | None:
        """The version of a definition that a tenant sees, by default the newest, in a transaction."""
        values = {"tenant": tenant, "name": name}
        rows = (
            await tx.query(_NEWEST, values)
            if version is None
            else await tx.query(_NUMBERED, {**values, "version": version})
        )
        return self._definition(rows[0]) if rows else None

    async def get(self, tenant: str, name: str, version: int | None = None) -> Definition | None:
        """The version of a definition that a tenant sees, by default the newest."""
        return await self._database.read(lambda tx: self.find(tx, tenant, name, version))

    async def of_run(self, tx: Tx, scope: str, name: str, version: int) -> Workflow:
        """The definition that a run follows."""
        known = self._remembered.get((scope, name, version))
        if known is None:
            rows = await tx.query(_GET, {"scope": scope, "name": name, "version": version})
            known = self._definition(rows[0])
        return known.workflow

    async def page(
        self, tenant: str | None, *, after: tuple[str, str] = ("", ""), limit: int = 100
    ) -> list[WorkflowOutline]:
        """The newest definitions that a tenant sees (None: all), in outline, by scope and name."""
        values = {"tenant": tenant or "", "scope": after[0], "name": after[1], "most": limit}
        rows = await self._database.read(lambda tx: tx.query(script("workflow_list", tx.dialect), values))
        return [workflow_outline_of(row) for row in rows]

    def _definition(self, row: Row) -> Definition:
        place = (row["scope"], row["name"], row["version"])
        known = self._remembered.get(place)
        if known is None:
            workflow = replace(from_document(json.loads(row["body"])), version=row["version"])
            known = Definition(row["scope"], workflow, row["digest"], row["created_ns"], row["created_by"])
            self._remembered[place] = known
            self._sizes[place] = len(row["body"])
            self._size += len(row["body"])
            while self._size > REMEMBERED_CHARS_MAX:
                oldest = next(iter(self._remembered))
                del self._remembered[oldest]
                self._size -= self._sizes.pop(oldest)
        return known

    @property
    def remembered_chars(self) -> int:
        """How long the texts of the remembered definitions are together."""
        return self._size


def check_scope(scope: str) -> str:
    """A tenant or `*`, or `BadInput`."""
    return scope if scope == ALL_TENANTS else check_label("scope", scope)
