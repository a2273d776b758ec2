"""What holds for a database of the plane on every engine: results, undoing, hostile values, cancelling, closing."""

from __future__ import annotations

import asyncio
import enum
import os
from functools import partial
from typing import Any

import pytest

from holdfast.errors import BadInput, Closed, Misconfigured, RowExists
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Tx
from support.fixtures.databases import insert, numbers
from support.load.sqlite_processes import in_a_child

pytestmark = pytest.mark.asyncio


class Colour(enum.StrEnum):
    RED = "red"


async def test_a_work_gets_rows_and_its_result_comes_back(database: Database) -> None:
    async def work(tx: Tx) -> tuple[int, Any]:
        assert tx.dialect == database.dialect
        number = await insert(tx, 7, "seven", "it's")
        return number, await tx.query("SELECT id, name, note FROM thing WHERE id = :id", {"id": 7, "unused": object()})

    number, rows = await database.write(work)

    assert number == 7
    assert rows == [{"id": 7, "name": "seven", "note": "it's"}]
    assert await database.write(lambda tx: tx.query("DELETE FROM thing")) == []


async def test_an_error_of_the_work_undoes_it_and_reaches_the_caller(database: Database) -> None:
    class Mine(Exception):
        pass

    async def work(tx: Tx) -> None:
        await insert(tx, 1)
        raise Mine("no")

    with pytest.raises(Mine, match="no"):
        await database.write(work)

    assert await numbers(database) == []
    assert await database.write(partial(insert, number=2)) == 2


async def test_a_statement_that_failed_spoils_the_work_even_if_it_swallows_the_error(database: Database) -> None:
    async def work(tx: Tx) -> str:
        await insert(tx, 1, "same")
        with pytest.raises(RowExists):
            await insert(tx, 2, "same")
        with pytest.raises(RowExists):
            await insert(tx, 3, "other")
        return "went on"

    with pytest.raises(RowExists):
        await database.write(work)

    assert await numbers(database) == []


async def test_one_failing_work_does_not_hurt_its_neighbours(database: Database) -> None:
    async def bad(tx: Tx, number: int) -> None:
        await insert(tx, 1000 + number)
        raise ValueError(number)

    calls = [database.write(partial(bad if n % 3 == 0 else insert, number=n)) for n in range(60)]
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert await numbers(database) == [n for n in range(60) if n % 3]
    for n, answer in enumerate(answers):
        assert (str(answer) == str(n) and isinstance(answer, ValueError)) if n % 3 == 0 else answer == n


async def test_many_rows_go_in_and_come_out(database: Database) -> None:
    rows = [{"id": n, "name": f"n{n}", "note": None} for n in range(10_000)]
    statement = "INSERT INTO thing (id, name, note) VALUES (:id, :name, :note)"
    await database.write(lambda tx: tx.query_many(statement, rows))
    await database.write(lambda tx: tx.query_many(statement, []))

    found = await database.read(lambda tx: tx.query("SELECT id, name, note FROM thing ORDER BY id"))

    assert found == rows


@pytest.mark.parametrize(
    "value",
    [
        "'; DROP TABLE thing; --",
        '"',
        ":id $1 %s %(x)s ? ??",
        "\\",
        "\n\t\x01\x7f",
        "𝄞 ﷽ \u202e",
        "x" * 1_000_000,
        "",
    ],
    ids=["quote", "double", "places", "backslash", "control", "wide", "long", "empty"],
)
async def test_hostile_text_is_only_text(database: Database, value: str) -> None:
    await database.write(partial(insert, number=1, note=value))

    found = await database.read(lambda tx: tx.query("SELECT note FROM thing WHERE note = :note", {"note": value}))

    assert found == [{"note": value}]


@pytest.mark.parametrize(
    "value", ["a\0b", "\ud800", 2**63, -(2**63) - 1, float("nan"), float("inf"), {"a": 1}, [1], {1}], ids=repr
)
async def test_what_cannot_be_stored_alike_is_refused_and_changes_nothing(database: Database, value: object) -> None:
    with pytest.raises(BadInput):
        await database.write(partial(insert, number=1, note=value))

    assert await numbers(database) == []


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 0, 70_000, True])
async def test_whole_numbers_have_64_bits(database: Database, value: int) -> None:
    statement = "INSERT INTO thing (id) VALUES (:id) RETURNING id"

    assert await database.write(lambda tx: tx.query(statement, {"id": int(value)})) == [{"id": value}]


async def test_members_of_enumerations_are_stored_as_their_text(database: Database) -> None:
    await database.write(partial(insert, number=1, name=Colour.RED))

    (row,) = await database.read(lambda tx: tx.query("SELECT name FROM thing"))

    assert row == {"name": "red"}
    assert type(row["name"]) is str


async def test_a_place_without_a_value_is_named(database: Database) -> None:
    with pytest.raises(BadInput, match=":id has no value"):
        await database.read(lambda tx: tx.query("SELECT 1 AS one FROM thing WHERE id = :id", {"ID": 1}))


@pytest.mark.parametrize("statement", ["COMMIT", " -- so\n rollback", "/* x */ SAVEPOINT a", "BEGIN"])
async def test_a_work_cannot_end_its_transaction_behind_our_back(database: Database, statement: str) -> None:
    async def work(tx: Tx) -> None:
        await insert(tx, 1)
        await tx.query(statement)

    with pytest.raises(BadInput, match="cannot be run here"):
        await database.write(work)

    assert await numbers(database) == []


async def test_two_statements_in_one_are_refused(database: Database) -> None:
    with pytest.raises(BadInput, match="one statement at a time"):
        await database.write(lambda tx: tx.query("DELETE FROM thing; DELETE FROM thing"))


async def test_a_missing_table_and_a_misspelt_word_say_what_is_wrong(database: Database) -> None:
    with pytest.raises(Misconfigured, match="nowhere"):
        await database.read(lambda tx: tx.query("SELECT * FROM nowhere"))
    with pytest.raises(Misconfigured, match="SELEKT"):
        await database.write(lambda tx: tx.query("SELEKT 1"))


async def test_a_read_that_writes_is_refused(database: Database) -> None:
    with pytest.raises(BadInput, match="give it to `write`"):
        await database.read(partial(insert, number=1))

    assert await numbers(database) == []


async def test_a_read_sees_one_state_however_many_statements_it_has(database: Database) -> None:
    """The counter moves while pairs of reads are under way; each pair sees the same value."""
    await database.write(partial(insert, number=1, note="0"))
    seen: set[str] = set()
    done = False

    async def move(tx: Tx) -> None:
        await tx.query("UPDATE thing SET note = note || '.' WHERE id = 1")

    async def look(tx: Tx) -> tuple[Any, Any]:
        first = await tx.query("SELECT note FROM thing WHERE id = 1")
        await tx.query("SELECT count(*) AS n FROM thing a, thing b")
        return first, await tx.query("SELECT note FROM thing WHERE id = 1")

    async def looking() -> None:
        while not done:
            first, second = await database.read(look)
            assert first == second
            seen.add(first[0]["note"])

    lookers = [asyncio.create_task(looking()) for _ in range(2)]
    async with asyncio.timeout(60):
        while len(seen) < 10:
            await database.write(move)
    done = True
    await asyncio.gather(*lookers)


async def test_what_was_acknowledged_is_seen_by_the_next_read(database: Database) -> None:
    for n in range(30):
        await database.write(partial(insert, number=n))
        assert (await numbers(database))[-1] == n


async def test_a_transaction_cannot_be_used_after_its_work(database: Database) -> None:
    kept: list[Tx] = []

    async def work(tx: Tx) -> None:
        kept.append(tx)

    await database.write(work)

    with pytest.raises(Closed, match="over"):
        await kept[0].query("SELECT 1")


async def test_a_cancelled_write_leaves_all_or_nothing_and_the_database_goes_on(database: Database) -> None:
    async def work(tx: Tx, number: int) -> None:
        await insert(tx, 2 * number)
        await insert(tx, 2 * number + 1)

    async def cancelled(number: int, turns: int) -> bool:
        task = asyncio.create_task(database.write(partial(work, number=number)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        return not (await asyncio.gather(task, return_exceptions=True))[0]

    acknowledged = [n for n in range(40) if await cancelled(n, 5 * n)]
    await database.write(partial(work, number=1000))

    found = await numbers(database)
    halves = {n // 2 for n in found}
    assert found == sorted(2 * n + side for n in halves for side in (0, 1))
    assert halves >= {*acknowledged, 1000}


async def test_closing_finishes_what_was_asked_before_and_refuses_what_comes_after(
    database: Database, plane_url: str
) -> None:
    writes = [asyncio.create_task(database.write(partial(insert, number=n))) for n in range(50)]
    await asyncio.sleep(0)  # they have asked
    await asyncio.gather(database.close(), database.close())

    assert await asyncio.gather(*writes) == list(range(50))
    for call in (database.write, database.read):
        with pytest.raises(Closed):
            await call(partial(insert, number=99))
    with pytest.raises(Closed):
        database.listen("a")
    again = open_database(plane_url)
    assert len(await numbers(again)) == 50
    await again.close()


async def test_a_database_that_was_never_used_can_be_closed(plane_url: str) -> None:
    unused = open_database(plane_url)
    await unused.close()
    await unused.close()

    with pytest.raises(Closed):
        await unused.read(lambda tx: tx.query("SELECT 1"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_forked_child_is_told_to_open_its_own(database: Database) -> None:
    def work() -> None:
        coroutine = database.write(partial(insert, number=1))
        coroutine.send(None)

    assert in_a_child(work).startswith("Misconfigured: this process was forked")


async def test_a_second_event_loop_is_refused(database: Database) -> None:
    def elsewhere() -> str:
        async def call() -> str:
            try:
                await database.read(lambda tx: tx.query("SELECT 1"))
            except Misconfigured as error:
                return str(error)
            return "it worked"

        return asyncio.run(call())

    assert "belongs to another event loop" in await asyncio.to_thread(elsewhere)


async def test_statistics_count(database: Database) -> None:
    await database.write(partial(insert, number=1))
    await numbers(database)

    counts = database.statistics()

    assert all(isinstance(each, int) for each in counts.values())
    assert {2, 1} <= set(counts.values())
