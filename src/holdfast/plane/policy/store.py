"""The error policy of a plane: one for all its processes, stored in its database, with the history of all changes.

    policy = PlanePolicy(database, clock)
    await policy.set("high", "fail_closed", actor="ada", reason="duplicates are rising")
    await policy.set_jitter(0.2, actor="ada", reason="retries come in waves")
    await policy.current()          # {"high": Standing(mode=fail_closed, since_ns=…, actor="ada", …), …}
    await policy.history(limit=50)  # newest first

Promises:

- Changes are serialized and numbered. Each is recorded in the history in its own transaction, and the history is never
  changed or deleted.
- `set(expect=revision)` changes a class only if it has not changed since (otherwise `PolicyConflict`), so of several
  processes that see the same reason one switches.
- A class that was never set is not in `current`, and fails closed.
- The jitter of busy retries (`BUSY_JITTER`) is switched, followed and recorded in the same way. Unset, it is 0.
- No lease is needed: the policy works while the lease store is down.

**The last change wins**, whatever its source:

- A command, an API call or an escalation applies when it is called.
- A file (`[risk]` in the settings, or the policy file) applies to a class at first start and whenever its entry
  changes. An unchanged file changes nothing, so a restart does not undo a later switch. A class that is not in the
  settings is not affected. A class that is removed from the policy file while a process follows it is set to
  `fail_closed`.
- Where both files name a class, the policy file applies and the settings do not.
- The same holds for `busy_jitter` in the `[scheduler]` table of either file; removed from the policy file it is set to
  0.
- `low` (`fail_open`) and `high` (`fail_closed`) are built-in defaults.

Changes are ordered as the database receives them, with one exception: a change that had to wait for the database does
not overwrite a change that was made after it, by the clock of its host.

Does not reach into processes: `follower` does.

Clock: the wall clock, for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from holdfast.core.lease.error_policy import OnError, parse_mode
from holdfast.core.lease.policy_exercise import parse_exercise, refusal
from holdfast.core.ports import Clock
from holdfast.errors import BadInput
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.records import check_text, check_whole
from holdfast.plane.policy.model import (
    BUSY_JITTER,
    ClassPolicy,
    JitterPolicy,
    PlaneExercise,
    PolicyChange,
    PolicyConflict,
    PolicySource,
    PolicyView,
    change_of,
    class_policy_of,
    exercise_of,
    jitter_of,
)
from holdfast.types import NS, Duration, check_label, duration_ns

CHANNEL: Final = "policy"
"""The notification channel for changes."""

BUILT_IN: Final[Mapping[str, OnError]] = MappingProxyType({"low": OnError.FAIL_OPEN, "high": OnError.FAIL_CLOSED})
NO_JITTER: Final = "0"
ACTOR_CHARS_MAX: Final = 200
REASON_CHARS_MAX: Final = 500
HISTORY_PAGE_MAX: Final = 500
EXERCISE_MAX_NS: Final = 30 * 86_400 * NS

_SCHEMA: Final = "policy_schema"
_TURN: Final = sql("policy_lock")
_ADVANCE: Final = sql("policy_advance")
_REVISION: Final = sql("policy_revision")
_GET: Final = sql("policy_get")
_ALL: Final = sql("policy_all")
_PUT: Final = sql("policy_put")
_NOTE: Final = sql("policy_note")
_SETTING_GET: Final = sql("policy_setting_get")
_SETTING_PUT: Final = sql("policy_setting_put")
_HISTORY: Final = sql("policy_history")
_FILE_ENTRIES: Final = sql("policy_file_entries")
_FILE_ENTRY_PUT: Final = sql("policy_file_entry_put")
_RUNNING: Final = sql("exercise_running")
_LIST: Final = sql("exercise_list")
_BEGIN: Final = sql("exercise_begin")
_END: Final = sql("exercise_end")


class PlanePolicy:
    """The policy of one plane. Cheap to create; any number of instances share one policy."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._prepared = False

    async def prepare(self) -> None:
        """Create missing tables. The methods do so on their first call."""
        if not self._prepared:
            await prepare(self._database, _SCHEMA)
            self._prepared = True

    # Queries.

    async def view(self) -> PolicyView:
        """The complete policy, read in one transaction."""
        await self.prepare()
        return await self._database.read(self._view)

    async def revision(self) -> int:
        """The number of the last change, of a class or an exercise."""
        await self.prepare()
        rows = await self._database.read(lambda tx: tx.query(_REVISION))
        return int(rows[0]["revision"])

    async def current(self) -> dict[str, ClassPolicy]:
        """The mode of each class, by name. A missing class fails closed."""
        return dict((await self.view()).classes)

    async def history(
        self, limit: int = 100, risk: str | None = None, *, below: int | None = None
    ) -> list[PolicyChange]:
        """Changes, newest first; of one name or of all. `below`: only those with a smaller revision."""
        most = check_whole("limit", limit, 1, HISTORY_PAGE_MAX)
        values = {
            "limit": most,
            "risk": None if risk is None else check_label("risk", risk),
            "below": 2**63 - 1 if below is None else check_whole("below", below, 0, 2**63 - 1),
        }
        await self.prepare()
        return [change_of(row) for row in await self._database.read(lambda tx: tx.query(_HISTORY, values))]

    async def exercises(self, limit: int = 20) -> list[PlaneExercise]:
        """The newest exercises, running or ended, newest first."""
        values = {"limit": check_whole("limit", limit, 1, HISTORY_PAGE_MAX)}
        await self.prepare()
        return [exercise_of(row) for row in await self._database.read(lambda tx: tx.query(_LIST, values))]

    # Changes.

    async def set(
        self,
        risk: str,
        mode: OnError | str,
        *,
        actor: str,
        reason: str,
        source: PolicySource = PolicySource.COMMAND,
        expect: int | None = None,
    ) -> tuple[ClassPolicy, bool]:
        """Switch one class in all processes. Returns the class in force, and whether this call changed it.

        `expect`: the revision of the class that the caller has read, 0 if it was missing; `PolicyConflict` if it has
        changed. A class that already has this mode keeps the actor and reason of its last change.
        """
        change = _Change(_check_risk(risk), parse_mode("mode", mode), *_checked_author(actor, reason), source)
        row, changed = await self._set(change, expect)
        return class_policy_of(row), changed

    async def set_jitter(
        self,
        seconds: float,
        *,
        actor: str,
        reason: str,
        source: PolicySource = PolicySource.COMMAND,
        expect: int | None = None,
    ) -> tuple[JitterPolicy, bool]:
        """Switch the jitter of busy retries in all processes, likewise. 0: exactly the fixed delay.

        Each process checks the value against its own settings: see `busy_jitter`.
        """
        change = _Change(BUSY_JITTER, jitter_text(seconds), *_checked_author(actor, reason), source)
        row, changed = await self._set(change, expect)
        return jitter_of(row), changed

    async def _set(self, change: _Change, expect: int | None) -> tuple[Row, bool]:
        if expect is not None:
            check_whole("expect", expect, 0, 2**63 - 1)
        await self.prepare()

        async def work(tx: Tx) -> tuple[Row, bool]:
            await tx.query(_TURN)
            return await self._switch(tx, change, expect)

        return await self._database.write(work)

    async def apply_file(
        self,
        entries: Mapping[str, OnError | float],
        *,
        actor: str,
        reason: str,
        source: PolicySource,
        read_ns: int | None = None,
    ) -> list[str]:
        """Apply the content of a file. Returns the names that it switched. See the module docstring for the rule.

        `entries`: modes of classes, and the seconds of `BUSY_JITTER`. `read_ns`: when the file was read, if that was
        earlier than now.
        """
        made = [
            _Change(*_named(name, value), *_checked_author(actor, reason), source) for name, value in entries.items()
        ]
        await self.prepare()

        async def work(tx: Tx) -> list[str]:
            await tx.query(_TURN)
            known = {row["risk"]: row["mode"] for row in await tx.query(_FILE_ENTRIES, {"source": source})}
            now_ns = self._clock.now().wall
            switched = []
            for change in made:
                if known.get(change.risk) == change.mode:
                    continue
                values = {"source": source, "risk": change.risk, "mode": change.mode, "at_ns": now_ns}
                await tx.query(_FILE_ENTRY_PUT, values)
                found = await self._found(tx, change.risk)
                if read_ns is not None and found is not None and found["since_ns"] > read_ns:
                    continue  # a later change exists
                _, changed = await self._switch(tx, change, None)
                switched += [change.risk] if changed else []
            return switched

        return await self._database.write(work)

    async def write_defaults(self) -> None:
        """Store the built-in defaults of classes that were never set."""
        await self.prepare()

        async def work(tx: Tx) -> None:
            await tx.query(_TURN)
            for risk, mode in BUILT_IN.items():
                if await self._found(tx, risk) is None:
                    await self._switch(tx, _Change(risk, mode, "holdfast", "built in", PolicySource.START), None)

        if BUILT_IN.keys() - (await self.current()).keys():
            await self._database.write(work)

    async def begin_exercise(
        self,
        family: str,
        share: float,
        *,
        duration: Duration,
        actor: str,
        reason: str = "",
        risk: str | None = None,
        force: bool = False,
    ) -> PlaneExercise:
        """Let a share of the acquisitions of a family see a simulated store error, in all processes, for that long.

        Replaces an exercise of the same family. `BadInput` if it would be an outage (`risk` is not fail_open, or no
        class is), unless it is forced.
        """
        lasts_ns = duration_ns("duration", duration, low_ns=NS, high_ns=EXERCISE_MAX_NS)
        wanted = parse_exercise(family, share, risk=risk, forced=force)
        who, why = _checked_author(actor, reason or "exercise of the fallback path")
        await self.prepare()

        async def work(tx: Tx) -> PlaneExercise:
            await tx.query(_TURN)
            view = await self._view(tx)
            refused = refusal(wanted, {name: each.mode for name, each in view.classes.items()})
            if refused is not None:
                raise refused
            now_ns = self._clock.now().wall
            await tx.query(_END, {"family": family, "now_ns": now_ns, "actor": who})
            row = {
                "revision": (await tx.query(_ADVANCE))[0]["revision"],
                "family": family,
                "parts": wanted.parts,
                "risk": risk,
                "forced": int(force),
                "since_ns": now_ns,
                "until_ns": now_ns + lasts_ns,
                "actor": who,
                "reason": why,
                "ended_by": None,
            }
            await tx.query(_BEGIN, row)
            tx.notify(CHANNEL)
            return exercise_of(row)

        return await self._database.write(work)

    async def end_exercise(self, family: str, *, actor: str) -> bool:
        """End the exercise of a family in all processes. False: none was running."""
        who, _ = _checked_author(actor, "end")
        check_label("family", family)
        await self.prepare()

        async def work(tx: Tx) -> bool:
            await tx.query(_TURN)
            if not await tx.query(_END, {"family": family, "now_ns": self._clock.now().wall, "actor": who}):
                return False
            await tx.query(_ADVANCE)
            tx.notify(CHANNEL)
            return True

        return await self._database.write(work)

    # Inside a transaction.

    async def _view(self, tx: Tx) -> PolicyView:
        revision = (await tx.query(_REVISION))[0]["revision"]
        classes = {row["risk"]: class_policy_of(row) for row in await tx.query(_ALL)}
        running = await tx.query(_RUNNING, {"now_ns": self._clock.now().wall})
        jitter = await self._found(tx, BUSY_JITTER)
        return PolicyView(
            int(revision),
            classes,
            [exercise_of(row) for row in running],
            None if jitter is None else jitter_of(jitter),
        )

    async def _found(self, tx: Tx, name: str) -> Row | None:
        rows = await tx.query(_SETTING_GET if name == BUSY_JITTER else _GET, {"risk": name})
        return rows[0] if rows else None

    async def _switch(self, tx: Tx, change: _Change, expect: int | None) -> tuple[Row, bool]:
        """The caller has taken the turn. Returns the row in force, and whether it is new."""
        found = await self._found(tx, change.risk)
        revision = 0 if found is None else int(found["revision"])
        if expect is not None and expect != revision:
            raise PolicyConflict(
                f"{change.what} was changed since it was read (revision {expect}, now {revision}); read it again",
                risk=change.risk,
                found=revision,
            )
        if found is not None and found["mode"] == change.mode:
            return found, False
        unnamed = NO_JITTER if change.setting else OnError.FAIL_CLOSED
        values = {
            "risk": change.risk,
            "before": unnamed if found is None else found["mode"],
            "mode": change.mode,
            "actor": change.actor,
            "reason": change.reason,
            "source": change.source,
            "at_ns": self._clock.now().wall,
            "revision": (await tx.query(_ADVANCE))[0]["revision"],
        }
        for statement in (_SETTING_PUT,) if change.setting else (_PUT, _NOTE):
            await tx.query(statement, values)
        tx.notify(CHANNEL)
        return {**values, "since_ns": values["at_ns"]}, True


@dataclass(frozen=True, slots=True)
class _Change:
    risk: str  # or the name of a setting
    mode: str
    actor: str
    reason: str
    source: PolicySource

    @property
    def setting(self) -> bool:
        return self.risk == BUSY_JITTER

    @property
    def what(self) -> str:
        return self.risk if self.setting else f"risk class {self.risk}"


def jitter_text(seconds: float) -> str:
    """A jitter as it is stored: equal lengths have equal texts."""
    return f"{duration_ns(BUSY_JITTER, seconds) / NS:.9g}"


def _named(name: str, value: OnError | float) -> tuple[str, str]:
    if name == BUSY_JITTER:
        return name, jitter_text(float(value))
    return _check_risk(name), parse_mode("mode", value)


def _check_risk(risk: object) -> str:
    if risk == BUSY_JITTER:
        raise BadInput("risk", f"{BUSY_JITTER} is no risk class", "use another name; set_jitter switches the jitter")
    return check_label("risk", risk)


def _checked_author(actor: object, reason: object) -> tuple[str, str]:
    if isinstance(reason, str) and not reason.strip():
        raise BadInput("reason", "is empty", "give a reason; the history keeps it")
    return check_text("actor", actor, ACTOR_CHARS_MAX), check_text("reason", reason, REASON_CHARS_MAX)
