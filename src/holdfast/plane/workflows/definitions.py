"""Workflow definitions in the database: stored in versions that never change, so a run keeps its definition.

Promises:

- Storing the newest definition again returns its version. Otherwise it becomes the next version, also when several
  processes store definitions at the same time.
- A tenant sees its own definitions and those of all tenants (`*`). Its own takes precedence if both have a name.
- Versions that were read are cached, because they cannot change. The cache is bounded in characters and evicts the
  least recently read version.
- Pages contain outlines, which are stored separately, so the cost of a page does not depend on the size of definitions.

Clock: the wall clock, for people.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace
from typing import Final

from holdfast.core.ports import Clock
from holdfast.core.strict_parsers import WRAPPED_MAX
from holdfast.errors import Unavailable
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import script, sql
from holdfast.plane.model.records import TEXT_CHARS_MAX, beginning, encoded
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.definition_codec import as_document, from_document
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.plane.workflows.core.validation import accept_document, check_workflow
from holdfast.types import check_label

ALL_TENANTS: Final = "*"
REMEMBERED_CHARS_MAX: Final = 4_000_000  # size of the cache, in characters of definitions
_TRIES: Final = 10

_INSERT: Final = sql("workflow_insert")
_GET: Final = sql("workflow_get")
_NEWEST: Final = sql("workflow_newest")
_NUMBERED: Final = sql("workflow_numbered")


@dataclass(frozen=True, slots=True)
class WorkflowOutline:
    """A definition without its inputs, steps and templates. See `Definition`."""

    scope: str
    name: str
    version: int
    risk: str
    steps: int  # their number
    description: str  # its beginning
    digest: str
    created_ns: int
    created_by: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A stored workflow."""

    scope: str  # a tenant, or `*`
    workflow: Workflow
    digest: str
    created_ns: int
    created_by: str

    @property
    def outline(self) -> WorkflowOutline:
        """Its entry in a list."""
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
        """The definition from a document, or `BadWorkflow`.

        It is parsed in a thread, one document at a time: a large one takes seconds.
        """
        async with self._reading:
            return await asyncio.to_thread(accept_document, document, source)

    async def keep(
        self, workflow: Workflow, *, scope: str = ALL_TENANTS, actor: str = "", accepted: bool = False
    ) -> tuple[Definition, bool]:
        """Store a definition, or `BadWorkflow`. Also returns whether it is a new version.

        `accepted`: it comes from `accept` and need not be checked again.
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
                "outline": _outline_text(workflow.risk, len(workflow.steps), workflow.description),
                "now_ns": self._clock.now().wall,
                "created_by": actor,
            }
            made = await tx.query(_INSERT, values)
            return (made[0], True) if made else None

        for _ in range(_TRIES):  # another process may have stored the same version at the same time
            if (kept := await self._database.write(work)) is not None:
                return self._definition(kept[0]), kept[1]
        raise Unavailable(f"workflow {workflow.name} is being changed by several processes; try again")

    async def find(self, tx: Tx, tenant: str, name: str, version: int | None = None) -> Definition | None:
        """The version of a definition that a tenant sees, by default the newest, within a transaction."""
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
        """The definition of a run."""
        known = self._remembered.get((scope, name, version))
        if known is None:
            rows = await tx.query(_GET, {"scope": scope, "name": name, "version": version})
            known = self._definition(rows[0])
        return known.workflow

    async def page(
        self, tenant: str | None, *, after: tuple[str, str] = ("", ""), limit: int = 100
    ) -> list[WorkflowOutline]:
        """Outlines of the newest definitions that a tenant sees (None: all), by scope and name."""
        values = {"tenant": tenant or "", "scope": after[0], "name": after[1], "most": limit}
        rows = await self._database.read(lambda tx: tx.query(script("workflow_list", tx.dialect), values))
        return [_outline_of(row) for row in rows]

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
        """The size of the cache."""
        return self._size


def check_scope(scope: str) -> str:
    """A tenant or `*`, or `BadInput`."""
    return scope if scope == ALL_TENANTS else check_label("scope", scope)


def _outline_of(row: Row) -> WorkflowOutline:
    """The outline of a definition from its row."""
    risk, steps, description = json.loads(row["outline"])
    return WorkflowOutline(
        scope=row["scope"],
        name=row["name"],
        version=row["version"],
        risk=risk,
        steps=steps,
        description=beginning(description),
        digest=row["digest"],
        created_ns=row["created_ns"],
        created_by=row["created_by"],
    )


def _outline_text(risk: str, steps: int, description: str) -> str:
    """The part of an outline that comes from the definition, as it is stored next to it."""
    return json.dumps([risk, steps, description[: TEXT_CHARS_MAX + 1]])
