"""The error policy of a plane: one for all its processes, kept in its database, with every change of it.

    policy = PlanePolicy(database, clock)
    await policy.set("high", "fail_closed", actor="ada", reason="duplicates are rising")
    await policy.set_jitter(0.2, actor="ada", reason="retries come in waves")
    await policy.current()          # {"high": Standing(mode=fail_closed, since_ns=…, actor="ada", …), …}
    await policy.history(limit=50)  # newest first

Promises: changes are made one after another and numbered; what is said is in the history in the same transaction, and
nothing of that is ever changed or deleted. `set(expect=revision)` changes a class only if nobody has changed it since
(`PolicyMoved` otherwise), so that of several who see the same reason one switches. A class that nobody has named is not
in `current`, and fails closed. The jitter of busy retries (`BUSY_JITTER`) is switched, followed and remembered in the
same way; without a switch there is none. No lease is needed for any of this: it works while the lease store is down.

**The last word wins**, whoever says it:

- A command, the API or an escalation speaks when it is called.
- A file (`[risk]` in the settings, or the policy file) speaks when what it says about a class differs from what a file
  of that kind said last: at the first start, and after an edit. A file that still says the same says nothing, so a
  restart does not undo what was switched since. A class that is not in the settings is not spoken of. One that is taken
  out of the policy file while a process follows it goes to `fail_closed`.
- Where both files name a class, the policy file speaks and the settings do not.
- The same holds for `busy_jitter` in the `[scheduler]` table of either file; taken out of the policy file it goes to 0.
- `low` (`fail_open`) and `high` (`fail_closed`) are built in: they hold where nobody has said anything.

Words are ordered as the database receives them, except that one which had to wait for the database does not overrule
one that was said, by the clock of its host, after it.

Does not reach into processes: `policy_following` does.

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
    JitterStanding,
    PlaneExercise,
    PolicyChange,
    PolicyMoved,
    PolicyView,
    Source,
    Standing,
    change_of,
    exercise_of,
    jitter_of,
    standing_of,
)
from holdfast.types import NS, Duration, check_label, duration_ns

CHANNEL: Final = "policy"
"""The bell that rings when anything here changes."""

BUILT_IN: Final[Mapping[str, OnError]] = MappingProxyType({"low": OnError.FAIL_OPEN, "high": OnError.FAIL_CLOSED})
NO_JITTER: Final = "0"
ACTOR_CHARS_MAX: Final = 200
REASON_CHARS_MAX: Final = 500
HISTORY_PAGE_MAX: Final = 500
EXERCISE_MAX_NS: Final = 30 * 86_400 * NS

_SCHEMA: Final = "policy_schema"
_TURN: Final = sql("policy_take_turn")
_ADVANCE: Final = sql("policy_advance")
_REVISION: Final = sql("policy_revision")
_GET: Final = sql("policy_get")
_ALL: Final = sql("policy_all")
_PUT: Final = sql("policy_put")
_NOTE: Final = sql("policy_note")
_SETTING_GET: Final = sql("policy_setting_get")
_SETTING_PUT: Final = sql("policy_setting_put")
_HISTORY: Final = sql("policy_history")
_WORDS: Final = sql("policy_words")
_WORD_PUT: Final = sql("policy_word_put")
_RUNNING: Final = sql("exercise_running")
_LIST: Final = sql("exercise_list")
_BEGIN: Final = sql("exercise_begin")
_END: Final = sql("exercise_end")


class PlanePolicy:
    """The policy of one plane. Cheap to make; any number of them, anywhere, speak about the same one."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._prepared = False

    async def prepare(self) -> None:
        """Make sure that the tables are there. The methods do so themselves when they are first called."""
        if not self._prepared:
            await prepare(self._database, _SCHEMA)
            self._prepared = True

    # Looking.

    async def view(self) -> PolicyView:
        """Everything at once."""
        await self.prepare()
        return await self._database.read(self._view)

    async def revision(self) -> int:
        """The number of the last change, of a class or an exercise."""
        await self.prepare()
        rows = await self._database.read(lambda tx: tx.query(_REVISION))
        return int(rows[0]["revision"])

    async def current(self) -> dict[str, Standing]:
        """What each class does, by name. One that is not there fails closed."""
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
        """The newest exercises, over or not, newest first."""
        values = {"limit": check_whole("limit", limit, 1, HISTORY_PAGE_MAX)}
        await self.prepare()
        return [exercise_of(row) for row in await self._database.read(lambda tx: tx.query(_LIST, values))]

    # Speaking.

    async def set(
        self,
        risk: str,
        mode: OnError | str,
        *,
        actor: str,
        reason: str,
        source: Source = Source.COMMAND,
        expect: int | None = None,
    ) -> tuple[Standing, bool]:
        """Switch one class, in all processes. What holds now, and whether this changed it.

        `expect`: the revision of the class as it was seen, 0 if it was not there; `PolicyMoved` if it has changed.
        A class that does so already stays as it is, with the word of whoever switched it.
        """
        word = _Word(_check_risk(risk), parse_mode("mode", mode), *_said_by(actor, reason), source)
        row, changed = await self._set(word, expect)
        return standing_of(row), changed

    async def set_jitter(
        self,
        seconds: float,
        *,
        actor: str,
        reason: str,
        source: Source = Source.COMMAND,
        expect: int | None = None,
    ) -> tuple[JitterStanding, bool]:
        """Switch the jitter of busy retries in all processes, likewise; 0: exactly the fixed delay.

        Whether it suits the settings of a process is that process's to check: see `busy_jitter`.
        """
        word = _Word(BUSY_JITTER, jitter_text(seconds), *_said_by(actor, reason), source)
        row, changed = await self._set(word, expect)
        return jitter_of(row), changed

    async def _set(self, word: _Word, expect: int | None) -> tuple[Row, bool]:
        if expect is not None:
            check_whole("expect", expect, 0, 2**63 - 1)
        await self.prepare()

        async def work(tx: Tx) -> tuple[Row, bool]:
            await tx.query(_TURN)
            return await self._switch(tx, word, expect)

        return await self._database.write(work)

    async def say(
        self,
        words: Mapping[str, OnError | float],
        *,
        actor: str,
        reason: str,
        source: Source,
        said_ns: int | None = None,
    ) -> list[str]:
        """What a file says, as a whole: the names of what was switched by it. See the rule above.

        `words`: what classes do, and the seconds of `BUSY_JITTER`. `said_ns` is when the file was found to say so,
        where that was not now.
        """
        made = [_Word(*_named(name, value), *_said_by(actor, reason), source) for name, value in words.items()]
        await self.prepare()

        async def work(tx: Tx) -> list[str]:
            await tx.query(_TURN)
            known = {row["risk"]: row["mode"] for row in await tx.query(_WORDS, {"source": source})}
            now_ns = self._clock.now().wall
            switched = []
            for word in made:
                if known.get(word.risk) == word.mode:
                    continue
                values = {"source": source, "risk": word.risk, "mode": word.mode, "at_ns": now_ns}
                await tx.query(_WORD_PUT, values)
                found = await self._found(tx, word.risk)
                if said_ns is not None and found is not None and found["since_ns"] > said_ns:
                    continue  # there is a later switch
                _, changed = await self._switch(tx, word, None)
                switched += [word.risk] if changed else []
            return switched

        return await self._database.write(work)

    async def build_in(self) -> None:
        """Write down what holds for the built-in classes, where nobody has said anything."""
        await self.prepare()

        async def work(tx: Tx) -> None:
            await tx.query(_TURN)
            for risk, mode in BUILT_IN.items():
                if await self._found(tx, risk) is None:
                    await self._switch(tx, _Word(risk, mode, "holdfast", "built in", Source.START), None)

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
        """Let a share of the acquisitions of a family meet a pretended store error, in all processes, for that long.

        Replaces one of the same family. `BadInput` where it would be an outage (`risk` is not fail_open, or no class
        is), unless it is forced.
        """
        lasts_ns = duration_ns("duration", duration, low_ns=NS, high_ns=EXERCISE_MAX_NS)
        wanted = parse_exercise(family, share, risk=risk, forced=force)
        who, why = _said_by(actor, reason or "exercise of the fallback path")
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
            tx.ring(CHANNEL)
            return exercise_of(row)

        return await self._database.write(work)

    async def end_exercise(self, family: str, *, actor: str) -> bool:
        """End the exercise of a family in all processes. False: there was none."""
        who, _ = _said_by(actor, "end")
        check_label("family", family)
        await self.prepare()

        async def work(tx: Tx) -> bool:
            await tx.query(_TURN)
            if not await tx.query(_END, {"family": family, "now_ns": self._clock.now().wall, "actor": who}):
                return False
            await tx.query(_ADVANCE)
            tx.ring(CHANNEL)
            return True

        return await self._database.write(work)

    # Inside a transaction.

    async def _view(self, tx: Tx) -> PolicyView:
        revision = (await tx.query(_REVISION))[0]["revision"]
        classes = {row["risk"]: standing_of(row) for row in await tx.query(_ALL)}
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

    async def _switch(self, tx: Tx, word: _Word, expect: int | None) -> tuple[Row, bool]:
        """The turn was taken. The row in force, and whether it is new."""
        found = await self._found(tx, word.risk)
        revision = 0 if found is None else int(found["revision"])
        if expect is not None and expect != revision:
            raise PolicyMoved(
                f"{word.what} was changed since it was looked at (revision {expect}, now {revision}); look again",
                risk=word.risk,
                found=revision,
            )
        if found is not None and found["mode"] == word.mode:
            return found, False
        unnamed = NO_JITTER if word.setting else OnError.FAIL_CLOSED
        values = {
            "risk": word.risk,
            "before": unnamed if found is None else found["mode"],
            "mode": word.mode,
            "actor": word.actor,
            "reason": word.reason,
            "source": word.source,
            "at_ns": self._clock.now().wall,
            "revision": (await tx.query(_ADVANCE))[0]["revision"],
        }
        for statement in (_SETTING_PUT,) if word.setting else (_PUT, _NOTE):
            await tx.query(statement, values)
        tx.ring(CHANNEL)
        return {**values, "since_ns": values["at_ns"]}, True


@dataclass(frozen=True, slots=True)
class _Word:
    risk: str  # or the name of a setting
    mode: str
    actor: str
    reason: str
    source: Source

    @property
    def setting(self) -> bool:
        return self.risk == BUSY_JITTER

    @property
    def what(self) -> str:
        return self.risk if self.setting else f"risk class {self.risk}"


def jitter_text(seconds: float) -> str:
    """A jitter as it is stored: the same text for the same length."""
    return f"{duration_ns(BUSY_JITTER, seconds) / NS:.9g}"


def _named(name: str, value: OnError | float) -> tuple[str, str]:
    if name == BUSY_JITTER:
        return name, jitter_text(float(value))
    return _check_risk(name), parse_mode("mode", value)


def _check_risk(risk: object) -> str:
    if risk == BUSY_JITTER:
        raise BadInput("risk", f"{BUSY_JITTER} is no risk class", "use another name; set_jitter switches the jitter")
    return check_label("risk", risk)


def _said_by(actor: object, reason: object) -> tuple[str, str]:
    if isinstance(reason, str) and not reason.strip():
        raise BadInput("reason", "is empty", "say why; it is kept in the history")
    return check_text("actor", actor, ACTOR_CHARS_MAX), check_text("reason", reason, REASON_CHARS_MAX)
