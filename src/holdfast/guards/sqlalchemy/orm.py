"""Guarded instances of the ORM: a section hands out the instance, and whatever the session flushes of it is checked.

    class Invoice(Guarded, Base): ...                       # adds the fence column

    guard = GuardedEntity(session, Invoice, key="invoice:{id}")
    with session.begin():
        with guard.section(lease, 42) as invoice:           # registers the fence and reads, in one UPDATE … RETURNING
            invoice.total += 5                              # flushed at the end of the section, or before, if need be

Promises: the instance is as the database has it at the moment of registration, also if the session had an older state
of it; what is flushed, in the section, is refused unless the row still carries the section's fence (`FencedOut`, or
`NotEntered` after a rollback), and a commit in the middle only means that this is checked again. What is changed after
the section, or without one, is not flushed at all (`Unfenced`, see `session_events`).

Subclasses in the same table have guards of their own or use that of the base class; those with tables of their own use
that of the base class, whose table has the fence.

Does not refresh other instances: read what belongs to the row inside the section, with `populate_existing` where the
session may know an older state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Generic, Literal, TypeVar, Unpack, overload

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.util import identity_key

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Rule
from holdfast.errors import BadInput, RowMissing
from holdfast.guards.admission import GuardStatistics, Presented
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.settings import TableSettings
from holdfast.guards.sql.rows import Found, RowId, check_row_id
from holdfast.guards.sql.table_flow import TableFlow
from holdfast.guards.sqlalchemy.reservations import RowChange, hold, hold_place, hold_to_delete
from holdfast.guards.sqlalchemy.rows import SqlalchemyRows
from holdfast.guards.sqlalchemy.schema import GuardedSchema, described_table
from holdfast.guards.sqlalchemy.session_events import (
    FENCE_ATTRIBUTE,
    OURS,
    EnteredSection,
    Guarded,
    Place,
    SessionGuards,
    outside_a_section,
    place,
)
from holdfast.runtime.run_sync import run_now

E = TypeVar("E", bound=Guarded)
B_contra = TypeVar("B_contra", bound=Bearer, contravariant=True)

INSTANCE: Final = "instance"  # what an entered row is found under


class EntityRows(SqlalchemyRows):
    """`rows.RowStore` whose reads bring instances: `{"instance": …}` instead of columns."""

    def __init__(self, session: Session, entity: type[Any], about: GuardedSchema) -> None:
        super().__init__(session, about)
        self._session = session
        self._entity = entity

    async def read(self, row: RowId) -> Found | None:
        """See `RowStore`."""
        return _found(self._session.get(self._entity, row, populate_existing=True))

    async def stamp(self, row: RowId, fence: int, rule: Rule) -> Found | None:
        """See `RowStore`."""
        change = sa.update(self._entity).values(self._stamped(fence)).where(*self._is(row), *self._holds(fence, rule))
        # The session may have an older state of the instance; what the database returns replaces it.
        options = {"populate_existing": True, "synchronize_session": False, OURS: OURS}
        with self._explaining():
            found = self._session.scalars(change.returning(self._entity), execution_options=options)
            return _found(found.one_or_none())


class EntityFlow(TableFlow):
    """The steps of one guarded class on one session, for sync and asyncio."""

    def __init__(self, session: Session, entity: type[Any], settings: TableSettings, allow_degraded: bool) -> None:
        self.session = session
        self.mapper = _check_entity(session, entity, settings)
        fence = self.mapper.get_property(FENCE_ATTRIBUTE).columns[0].key
        about = described_table(session, entity, {**settings, "fence_column": fence}, allow_degraded)
        # The base class, since a row that is of another class must not look as if there were none.
        self._sql = EntityRows(session, self.mapper.base_mapper.class_, about)
        super().__init__(self._sql, about.names, about.admission)

    async def open(self, lease: Bearer, row_id: RowId) -> tuple[Any, EnteredSection | None]:
        """Begin a section: register the fence and read. The instance or None, and the section that this one covers."""
        row = check_row_id(row_id, self.names.id_columns)
        known = self._known(row)
        if known is not None and (
            known in self.session.deleted or self.session.is_modified(known, include_collections=False)
        ):
            raise outside_a_section(known, "was changed before its section began")
        found = await self.enter(lease, row)
        instance = None if found is None else found[INSTANCE]
        if instance is not None and not isinstance(instance, self.mapper.class_):
            raise BadInput(
                "row_id", f"{self.resource(row)} is a {type(instance).__name__}", f"this guard is for {self._shown}"
            )
        if instance is None and known is not None and known in self.session:
            self.session.expunge(known)  # another client deleted it; a new one can be added in its place
        sections = SessionGuards.of(self.session).sections
        before = sections.get(self._place(row))
        sections[self._place(row)] = EnteredSection(self, lease, row)
        return instance, before

    def close(self, row_id: RowId, before: EnteredSection | None) -> None:
        """End a section: what is changed from now on is refused."""
        sections = SessionGuards.of(self.session).sections
        if before is None:
            sections.pop(self._place(row_id), None)
        else:
            sections[self._place(row_id)] = before

    async def admitted(self, lease: Bearer, row: RowId) -> Presented:
        """Before a flush: see that the lease is still held. Nothing is locked for a holder that is sent away here."""
        return await self._admit(lease, row, Rule.EXACTLY)

    async def reserve(self, presented: Presented, row: RowId, change: RowChange) -> dict[str, Any]:
        """Then: see that the row is still ours, and hold it. Returns the attributes that the guard keeps."""
        fence, rule = presented.fence, presented.rule
        if change is RowChange.INSERT:
            place = await hold_place(self._sql, row, fence, rule)
            return {FENCE_ATTRIBUTE: self.admission.written(presented, place)}
        outcome = await (hold if change is RowChange.UPDATE else hold_to_delete)(self._sql, row, fence, rule)
        found = self.admission.written(presented, outcome)
        kept = (self.names.fence_column, self.names.updated_column)
        return {self._attribute(column): found[column] for column in kept if column is not None and column in found}

    def connection(self) -> sa.Connection:
        """The connection of the session's transaction."""
        return self._sql.connection()

    def savepoint(self) -> AbstractContextManager[None]:
        """A savepoint in the session's transaction."""
        return self._sql.savepoint()

    async def forget(self, row: RowId) -> None:
        """The row was made: its memory in the ledger is not needed any more."""
        await self._sql.forget(row)

    def row_of(self, instance: Guarded) -> RowId:
        """The id of an instance, which need not be in the session."""
        if not isinstance(instance, self.mapper.class_):
            raise BadInput("instance", f"is a {type(instance).__name__}", f"this guard is for {self._shown}")
        parts = tuple(self.mapper.primary_key_from_instance(instance))
        return parts if len(parts) > 1 else parts[0]

    @contextmanager
    def adding(self, instance: Guarded) -> Iterator[None]:
        """Have an instance in the session that must not stay there if it cannot be flushed."""
        self.session.add(instance)
        try:
            yield
        except BaseException:
            if instance in self.session.new:
                self.session.expunge(instance)
            raise

    def missing(self, row_id: RowId) -> RowMissing:
        """What to say where there has to be a row."""
        return RowMissing(f"{self.resource(row_id)} does not exist; section_or_none() lets you add it")

    @property
    def _shown(self) -> str:
        name: str = self.mapper.class_.__name__
        return name

    def _known(self, row: RowId) -> Any:
        parts = row if isinstance(row, tuple) else (row,)
        return self.session.identity_map.get(identity_key(self.mapper.class_, parts))

    def _place(self, row: RowId) -> Place:
        return place(self.mapper, row if isinstance(row, tuple) else (row,))

    def _attribute(self, column: str) -> str:
        table = self.mapper.local_table
        return self.mapper.get_property_by_column(table.c[column]).key


def _found(instance: Any) -> Found | None:
    return None if instance is None else {INSTANCE: instance}


def _check_entity(session: object, entity: object, settings: TableSettings) -> Mapper[Any]:
    if not isinstance(session, Session):
        raise BadInput(
            "session",
            f"{type(session).__name__} is not a session",
            "give an orm.Session; holdfast.guards.aio.sqlalchemy has the guard for an AsyncSession",
        )
    mapper: object = sa.inspect(entity, raiseerr=False) if isinstance(entity, type) else None
    if not isinstance(mapper, Mapper) or not issubclass(mapper.class_, Guarded):
        shown = entity.__name__ if isinstance(entity, type) else type(entity).__name__
        raise BadInput("entity", f"{shown} is not a guarded class", "give a mapped class that has Guarded as a base")
    for name in ("id", "fence_column"):
        if name in settings:
            raise BadInput(name, "is what the class says it is", "leave it out")
    return mapper


class GuardedEntity(Generic[E, B_contra]):
    """A mapped class behind a guard, on one session."""

    @overload
    def __init__(
        self: GuardedEntity[E, Fenced],
        session: Session,
        entity: type[E],
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[TableSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedEntity[E, Bearer],
        session: Session,
        entity: type[E],
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[TableSettings],
    ) -> None: ...
    def __init__(
        self,
        session: Session,
        entity: type[E],
        *,
        allow_degraded: bool = False,
        **settings: Unpack[TableSettings],
    ) -> None:
        """`TableSettings` lists the settings; rows are identified by the primary key."""
        self._flow = EntityFlow(session, entity, settings, allow_degraded)
        self._session = session

    @contextmanager
    def section(self, lease: B_contra, row_id: RowId) -> Iterator[E]:
        """Register the fence and hand out the instance; what the block changes is checked, and flushed at its end.

        `FencedOut` when the row has met a newer holder, `RowMissing` when there is none.
        """
        with self.section_or_none(lease, row_id) as instance:
            if instance is None:
                raise self._flow.missing(row_id)
            yield instance

    @contextmanager
    def section_or_none(self, lease: B_contra, row_id: RowId) -> Iterator[E | None]:
        """The same, with None where there is no row: the block can add one with that primary key to the session."""
        instance, before = run_now(self._flow.open(lease, row_id))
        reach("guard.entered")
        try:
            yield instance
            self._session.flush()
        finally:
            self._flow.close(row_id, before)

    def insert(self, lease: B_contra, instance: E) -> None:
        """Add an instance, which has its primary key; `RowExists` if there is such a row."""
        with self.section_or_none(lease, self._flow.row_of(instance)), self._flow.adding(instance):
            self._session.flush()

    def upsert(self, lease: B_contra, instance: E) -> E:
        """Merge an instance into the session: change the row to what it says, or add it. Returns the merged one."""
        with self.section_or_none(lease, self._flow.row_of(instance)):
            return self._session.merge(instance)

    def delete(self, lease: B_contra, row_id: RowId) -> None:
        """Delete a row; its fence is remembered. `RowMissing` if there is none."""
        with self.section(lease, row_id) as instance:
            self._session.delete(instance)

    def seen(self, row_id: RowId) -> int | None:
        """The highest fence that the row has met; None: it has never met one. For people and tests."""
        return run_now(self._flow.seen(row_id))

    def statistics(self) -> GuardStatistics:
        """What this guard has decided since it was made. Each flush of a row counts as a write."""
        return self._flow.admission.statistics()
