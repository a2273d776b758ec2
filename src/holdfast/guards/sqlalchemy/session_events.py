"""The watch over guarded classes: no session flushes one of their instances that was not entered under a fence.

Promises, for every session of the process: before a flush that inserts, updates or deletes rows of a class with
`Guarded`, each of these rows is stamped in the same transaction, under the condition that it still carries exactly the
fence of the section it was entered in. If one does not, or was never entered, the flush does not happen. An
`update()`, `insert()` or `delete()` of a guarded table through `Session.execute` is refused.

Does not see what goes past the session: `Connection.execute`, `text()`, a writing CTE, the legacy `bulk_*` methods,
and the second UPDATE of a relationship with `post_update`. The trigger of `holdfast guard install` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Mapped, Mapper, ORMExecuteState, Session, declared_attr, mapped_column, object_session
from sqlalchemy.orm.attributes import set_committed_value

from holdfast.core.failpoints import reach
from holdfast.errors import BadInput, Unfenced
from holdfast.guards.admission import Presented
from holdfast.guards.bearer import Bearer
from holdfast.guards.sql.rows import RowId, ledger_id
from holdfast.guards.sqlalchemy.reservations import RowChange
from holdfast.guards.sqlalchemy.schema import FENCE_MARK
from holdfast.runtime.run_sync import run_now

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from holdfast.guards.sqlalchemy.orm import EntityFlow

OURS: Final = "holdfast_guard"  # the execution option that marks the guard's own statements
FENCE_ATTRIBUTE: Final = "holdfast_fence"

Place: TypeAlias = tuple[sa.Table, str]


class Guarded:
    """Put it among the bases of a mapped class: adds the column of the fence, and holds every session to it.

    A dataclass (`MappedAsDataclass`) declares the column itself, for SQLAlchemy lets only dataclasses add fields to it:
    `holdfast_fence: Mapped[int | None] = mapped_column(BigInteger, default=None, init=False)`.
    """

    @declared_attr
    def holdfast_fence(cls) -> Mapped[int | None]:  # noqa: N805 - SQLAlchemy calls it with the class
        """The highest fence that the row was entered or written under. Kept by the guard."""
        return mapped_column(sa.BigInteger(), nullable=True)


class EnteredSection(NamedTuple):
    """A section that is under way: which guard, which lease, which row."""

    flow: EntityFlow
    lease: Bearer
    row: RowId


class SessionGuards:
    """What the guards know about one session. Belongs to it, and is as little thread-safe."""

    def __init__(self) -> None:
        self.sections: dict[Place, EnteredSection] = {}
        self.open = 0  # how many `unguarded` blocks are under way
        self._cleared: set[Place] = set()  # by the flush that is under way
        self._made: list[EnteredSection] = []

    @classmethod
    def of(cls, session: Session | AsyncSession) -> SessionGuards:
        """The watch of a session."""
        found: SessionGuards = session.info.setdefault("holdfast.watch", cls())
        return found

    def before_flush(self, session: Session) -> None:
        """Stamp every guarded row that is about to be written, or raise, with nothing changed."""
        self._cleared.clear()
        self._made.clear()
        if self.open:
            return
        changes = {place: (change, instance) for change, instance, place in _changes(session)}
        if not changes:
            return
        sections = {place: self._section(place, *found) for place, found in changes.items()}
        # All are admitted before the first savepoint, which takes the write lock on SQLite: a process that is paused
        # between the two blocks no other writer.
        admitted = {place: run_now(each.flow.admitted(each.lease, each.row)) for place, each in sections.items()}
        with ExitStack() as savepoints:
            for entered in {id(each.flow.connection()): each for each in sections.values()}.values():
                savepoints.enter_context(entered.flow.savepoint())
            for place, (change, instance) in changes.items():
                self._clear(sections[place], admitted[place], change, instance)
            reach("guard.reserved")
        self._cleared.update(changes)

    def after_flush(self) -> None:
        """Rows that exist carry their fence themselves."""
        made, self._made = self._made, []
        for entered in made:
            run_now(entered.flow.forget(entered.row))
        if self._cleared:
            reach("guard.written")
        self._cleared.clear()

    def before_write(self, instance: Guarded) -> None:
        """In the middle of a flush: refuse what has come up since it began (orphans, foreign keys, other listeners)."""
        if not self.open and place_of(instance) not in self._cleared:
            raise outside_a_section(instance, "is changed by the flush itself, without having been entered")

    def _section(self, place: Place, change: RowChange, instance: Guarded) -> EnteredSection:
        found = self.sections.get(place)
        if found is None:
            raise outside_a_section(instance, f"is about to be written ({change}) outside a section")
        return found

    def _clear(self, entered: EnteredSection, presented: Presented, change: RowChange, instance: Guarded) -> None:
        kept = run_now(entered.flow.reserve(presented, entered.row, change))
        for name, value in kept.items():
            if change is RowChange.INSERT:
                setattr(instance, name, value)  # to be sent
            else:
                set_committed_value(instance, name, value)  # sent already
        if change is RowChange.INSERT:
            self._made.append(entered)


@contextmanager
def unguarded(session: Session | AsyncSession) -> Iterator[None]:
    """Let this session write guarded classes without a lease: for imports, migrations, rows that are not known yet.

    Nothing is checked in the block, a newer holder's work can be overwritten, and what is deleted leaves no memory.
    Flush or commit before it ends.
    """
    watch = SessionGuards.of(session)
    watch.open += 1
    try:
        yield
    finally:
        watch.open -= 1


def place_of(instance: Guarded) -> Place:
    """Which row an instance is: the one it was loaded from, or the one that it will be."""
    state: Any = sa.inspect(instance)
    mapper: Mapper[Any] = state.mapper
    identity = state.identity or tuple(mapper.primary_key_from_instance(instance))
    if any(part is None for part in identity):
        raise outside_a_section(instance, "has no primary key yet, so no lease can be for it")
    return place(mapper, identity)


def place(mapper: Mapper[Any], identity: tuple[Any, ...]) -> Place:
    """How a row is found again among the sections of a session: by the table of the base class, which has the fence."""
    table = mapper.base_mapper.local_table
    if not isinstance(table, sa.Table):
        raise BadInput("entity", f"{mapper.class_.__name__} is not mapped to a table", "guard the class that is")
    return table, ledger_id(identity if len(identity) > 1 else identity[0])


def _changes(session: Session) -> Iterable[tuple[RowChange, Guarded, Place]]:
    """What a flush would do to guarded rows. A row that is deleted and added again is changed, and comes last."""
    gone = {}
    for instance in session.deleted:
        if isinstance(instance, Guarded):
            gone[place_of(instance)] = instance
            yield RowChange.DELETE, instance, place_of(instance)
    for instance in session.dirty:
        if isinstance(instance, Guarded) and session.is_modified(instance, include_collections=False):
            _check_kept(instance)
            yield RowChange.UPDATE, instance, place_of(instance)
    for instance in session.new:
        if isinstance(instance, Guarded):
            found = place_of(instance)
            yield (RowChange.UPDATE if found in gone else RowChange.INSERT), instance, found


def _check_kept(instance: Guarded) -> None:
    """The columns that the guard keeps cannot be set by hand."""
    state: Any = sa.inspect(instance)
    ids = [state.mapper.get_property_by_column(column).key for column in state.mapper.primary_key]
    if any(state.attrs[name].history.has_changes() for name in ids):
        raise BadInput(
            "primary key", f"of {_shown(instance)} was changed", "a row keeps its lock: delete it and add another"
        )
    if state.attrs[FENCE_ATTRIBUTE].history.has_changes():
        raise BadInput(
            FENCE_ATTRIBUTE,
            f"of {_shown(instance)} was set by hand",
            "leave it to the guard; what was merged from an instance of an earlier fence is stale: read it again",
        )


def outside_a_section(instance: Guarded, problem: str) -> Unfenced:
    """What to say of an instance that was changed where no fence protects it."""
    return Unfenced(
        f"{_shown(instance)} {problem}; nothing was sent. Change it inside `with guard.section(lease, row_id)` of a "
        "GuardedEntity, and session.rollback() or expire() what you have changed; to write without a lease, say so: "
        "`with unguarded(session)`"
    )


def _shown(instance: Guarded) -> str:
    state: Any = sa.inspect(instance)
    identity = state.identity or tuple(state.mapper.primary_key_from_instance(instance))
    return f"{type(instance).__name__} {identity[0] if len(identity) == 1 else identity}"


def _before_flush(session: Session, _context: object, _instances: object) -> None:
    SessionGuards.of(session).before_flush(session)


def _after_flush(session: Session, _context: object) -> None:
    SessionGuards.of(session).after_flush()


def _before_statement(state: ORMExecuteState) -> None:
    if not (state.is_insert or state.is_update or state.is_delete) or state.execution_options.get(OURS) is OURS:
        return
    table, mapper = getattr(state.statement, "table", None), state.bind_mapper
    # A subclass may have a table of its own, without the fence; a Core statement has a table and no class.
    marked = table is not None and any(FENCE_MARK in column.info for column in table.columns)
    if not marked and (mapper is None or not issubclass(mapper.class_, Guarded)):
        return
    if not SessionGuards.of(state.session).open:
        name = getattr(table, "name", "a guarded table")
        raise Unfenced(
            f"a statement that writes {name} as a whole carries no fence; nothing was sent. Write row by row in a "
            "section, or say that it needs none: `with unguarded(session)`"
        )


def _before_write(_mapper: object, _connection: object, instance: Guarded) -> None:
    session = object_session(instance)
    if session is not None:
        SessionGuards.of(session).before_write(instance)


def _before_update(_mapper: object, _connection: object, instance: Guarded) -> None:
    session = object_session(instance)
    # Called for whatever was touched, also where no column has changed and nothing will be sent.
    if session is not None and session.is_modified(instance, include_collections=False):
        SessionGuards.of(session).before_write(instance)


def _mapped(mapper: Mapper[Any], _class: object) -> None:
    for column in mapper.get_property(FENCE_ATTRIBUTE).columns:
        column.info[FENCE_MARK] = True


event.listen(Guarded, "after_mapper_constructed", _mapped, propagate=True)
event.listen(Session, "before_flush", _before_flush)
event.listen(Session, "after_flush", _after_flush)
event.listen(Session, "do_orm_execute", _before_statement)
event.listen(Guarded, "before_insert", _before_write, propagate=True)
event.listen(Guarded, "before_update", _before_update, propagate=True)
event.listen(Guarded, "before_delete", _before_write, propagate=True)
