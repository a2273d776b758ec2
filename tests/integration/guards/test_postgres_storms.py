"""Many concurrent sessions, with fences in any order: none is ever accepted below one that was accepted before.

Triggers write down every change of a row or of its ledger entry that is committed, in the order in which the database
made them: a change holds its lock from there to the end of its transaction. `core.lease.fencing.accepts` has to agree
with each of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.core.lease.fencing import accepts
from holdfast.errors import FencedOut, Misconfigured, NotEntered, RowExists, RowMissing, Unavailable
from support.campaigns import campaign
from support.fixtures.guards import carried
from support.fixtures.postgres import every_postgres
from support.harness.postgres_tables import Stage

SESSIONS, STEPS, ROWS = 8, 30, (1, 2)

AUDIT = (
    "CREATE TABLE audit (number BIGSERIAL, resource TEXT, what TEXT, fence BIGINT)",
    """CREATE FUNCTION audit_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO audit (resource, what, fence) VALUES (OLD.id, 'DELETE', OLD.holdfast_fence);
        ELSE
            INSERT INTO audit (resource, what, fence) VALUES (NEW.id, TG_OP, NEW.holdfast_fence);
        END IF;
        RETURN NULL;
    END $$""",
    """CREATE FUNCTION audit_entry() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO audit (resource, what, fence) VALUES (NEW.resource, 'NOTE', NEW.fence);
        RETURN NULL;
    END $$""",
    "CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON invoices FOR EACH ROW EXECUTE FUNCTION audit_row()",
    "CREATE TRIGGER a AFTER INSERT OR UPDATE ON holdfast_guard_fence FOR EACH ROW EXECUTE FUNCTION audit_entry()",
)


class Storm:
    """Sessions that take random steps, and what came of them."""

    def __init__(self, pg: Stage, seed: int, *, level: str | None = None, degraded: Any = None) -> None:
        self._pg = pg
        self._seed = seed
        self._level = level
        self._degraded = degraded
        self.outcomes: Counter[str] = Counter()

    async def rage(self) -> list[tuple[Any, ...]]:
        """Let all sessions loose, wait for the last, and return the audit."""
        watcher = await self._pg.connect()
        for statement in AUDIT:
            await self._pg.run(watcher, statement)
        sessions = [await self._pg.connect() for _ in range(SESSIONS)]
        started = [self._pg.start(self._session(each, number)) for number, each in enumerate(sessions)]
        for each in started:
            self.outcomes.update(await each)
        assert "refused for no reason" not in self.outcomes
        return await self._pg.run(watcher, "SELECT resource, what, fence FROM audit ORDER BY number")

    async def _session(self, connection: Any, number: int) -> Counter[str]:
        chance = random.Random(f"{self._seed}/{number}")
        table = self._pg.table(connection, allow_degraded=True)
        outcomes: Counter[str] = Counter()
        for progress in range(STEPS):
            try:
                if self._level is None:
                    await self._step(table, chance, progress)
                else:
                    async with _transaction(self._pg, connection, self._level):
                        for _ in range(chance.randint(1, 2)):
                            await self._step(table, chance, progress)
                outcomes["accepted"] += 1
            except (FencedOut, NotEntered, RowExists, RowMissing, Misconfigured, Unavailable) as refused:
                right = not isinstance(refused, FencedOut) or not accepts(refused.seen, refused.fence)
                outcomes[type(refused).__name__ if right else "refused for no reason"] += 1
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as conflict:
                if self._level is None:
                    raise
                outcomes[type(conflict).__name__] += 1
        return outcomes

    async def _step(self, table: Any, chance: random.Random, progress: int) -> None:
        row = chance.choice(ROWS)
        bearer = carried(progress + chance.randint(0, 12))  # fences rise, and every session is behind another at times
        if self._degraded is not None and chance.random() < 0.3:
            bearer = self._degraded
        step = chance.choice(["section", "enter", "insert", "update", "upsert", "upsert", "delete"])
        if step == "section":
            async with table.section(bearer, row) as found:
                await found.upsert(total=found["total"] + 1 if found.exists else 0)
        else:
            await getattr(table, step)(bearer, row, *(() if step in {"enter", "delete"} else ({"total": 0},)))


@asynccontextmanager
async def _transaction(pg: Stage, connection: Any, level: str) -> AsyncIterator[None]:
    await pg.run(connection, f"BEGIN ISOLATION LEVEL {level}")
    try:
        await pg.run(connection, "SELECT count(*) FROM invoices")  # takes the snapshot
        yield
        await pg.run(connection, "COMMIT")
    except BaseException:
        await pg.run(connection, "ROLLBACK")
        raise


async def check(pg: Stage, audit: list[tuple[Any, ...]]) -> None:
    """Every committed change was allowed by what was committed before it, and the end is the highest of all."""
    highest: dict[str, int] = {}
    for number, (resource, what, fence) in enumerate(audit):
        # No fence counts as 0: there is none below it, so nothing is lost when it is forgotten.
        before, after = highest.get(resource), fence or 0
        assert accepts(before, after), f"{what} of {resource} under {fence} after {before}: {audit[: number + 1]}"
        highest[resource] = after
    table = pg.table(await pg.connect())
    for resource, last in highest.items():
        assert (await table.seen(int(resource)) or 0) == last


@every_postgres
@pytest.mark.requires("R47", "R65", "R69")
@pytest.mark.parametrize("seed", range(campaign(1, 3)))
async def test_no_fence_is_accepted_below_an_earlier_one_and_no_session_is_in_a_deadlock(pg: Stage, seed: int) -> None:
    storm = Storm(pg, seed)
    await check(pg, await storm.rage())
    assert storm.outcomes["accepted"] > SESSIONS
    assert storm.outcomes["FencedOut"] > SESSIONS
    connection = await pg.connect()
    assert await pg.run(connection, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [
        (0,)
    ]


@pytest.mark.requires("R69")
@pytest.mark.parametrize("seed", range(campaign(1, 3)))
async def test_leases_without_a_fence_among_them_lose_no_memory(
    pg: Stage, seed: int, degraded: holdfast.DegradedLease
) -> None:
    storm = Storm(pg, seed, degraded=degraded)
    await check(pg, await storm.rage())
    assert storm.outcomes["FencedOut"] > 0


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_transactions_of_every_level_end_in_a_right_answer_or_in_the_databases_own_error(
    pg: Stage, level: str
) -> None:
    storm = Storm(pg, 7, level=level)
    await check(pg, await storm.rage())
    assert storm.outcomes["accepted"] > 0
    assert storm.outcomes["FencedOut"] > 0
    if level == "READ COMMITTED":
        assert storm.outcomes["SerializationFailure"] == storm.outcomes["Misconfigured"] == 0
