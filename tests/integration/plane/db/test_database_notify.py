"""DatabaseNotifier: a notification wakes those who wait, in this process and in others, after the commit and never
without one."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from holdfast.errors import BadInput, Closed
from holdfast.plane.db.notifier import CHANNEL_CHARS_MAX, DatabaseNotifier
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import ChannelListener, Database, Tx
from holdfast.types import MS, NS
from support.fixtures.databases import insert, until

pytestmark = pytest.mark.asyncio

LONG = 60 * NS


async def notify(tx: Tx, channel: str, *more: str, number: int = 1) -> None:
    await insert(tx, number)
    for each in (channel, *more):
        tx.notify(each)


async def settle(listener: ChannelListener) -> None:
    """Listening begins with a notification, for something may have been missed before it."""
    assert await listener.wait(LONG) is True


async def test_a_ring_wakes_who_waits_and_who_waits_next(database: Database) -> None:
    early, other = database.listen("a"), database.listen("b")
    await settle(early)
    await settle(other)
    waiting = asyncio.create_task(early.wait(LONG))
    await asyncio.sleep(0)

    await database.write(lambda tx: notify(tx, "a"))

    assert await waiting is True
    await database.write(lambda tx: notify(tx, "a", number=2))
    assert await early.wait(LONG) is True
    assert await early.wait(0) is False
    assert await other.wait(0) is False


async def test_work_that_is_undone_rings_nowhere(database: Database) -> None:
    listener = database.listen("a")
    await settle(listener)

    async def undone(tx: Tx) -> None:
        await notify(tx, "a")
        raise ValueError

    with pytest.raises(ValueError):
        await database.write(undone)

    assert await listener.wait(0) is False


async def test_a_commit_elsewhere_rings_here(database: Database, plane_url: str) -> None:
    """Two objects know nothing of each other: as between processes, only the database connects them."""
    elsewhere = open_database(plane_url)
    listener, silent = database.listen("a"), database.listen("b")
    await settle(listener)
    await settle(silent)

    for n in range(20):
        await elsewhere.write(partial(notify, channel="a", number=n))
        assert await listener.wait(LONG) is True

    assert await silent.wait(0) is False
    await elsewhere.close()


async def test_the_last_ring_before_closing_is_heard(database: Database, plane_url: str) -> None:
    """A command that submits something and ends must not leave the others waiting."""
    listener = database.listen("a")
    await settle(listener)
    for n in range(3):
        elsewhere = open_database(plane_url)
        await elsewhere.write(partial(notify, channel="a", number=n))
        await elsewhere.close()

        assert await listener.wait(LONG) is True


async def test_a_read_has_nothing_to_tell(database: Database) -> None:
    async def work(tx: Tx) -> None:
        tx.notify("a")

    with pytest.raises(BadInput, match="give it to `write`"):
        await database.read(work)


async def test_what_is_committed_while_listening_begins_is_not_missed(database: Database, plane_url: str) -> None:
    elsewhere = open_database(plane_url)
    await elsewhere.read(lambda tx: tx.query("SELECT 1"))

    listener = database.listen("a")
    await elsewhere.write(lambda tx: notify(tx, "a"))

    assert await listener.wait(LONG) is True
    await elsewhere.close()


async def test_more_channels_than_fit_in_one_message_still_ring(database: Database, plane_url: str) -> None:
    elsewhere = open_database(plane_url)
    names = [f"{n:04}{'ä' * 190}" for n in range(300)]
    listener = database.listen(names[7])
    await settle(listener)

    await elsewhere.write(lambda tx: notify(tx, *names))

    assert await listener.wait(LONG) is True
    await elsewhere.close()


async def test_many_rings_at_once_reach_each_channel(database: Database, plane_url: str) -> None:
    """More than a listener's queue holds, while its loop is too busy to read: it wakes all waiters to be sure."""
    elsewhere = open_database(plane_url)
    listeners = [database.listen(f"c{n}") for n in range(100)]
    for listener in listeners:
        await settle(listener)

    for n in range(100):
        await elsewhere.write(partial(notify, channel=f"c{n}", number=n))

    assert all(await asyncio.gather(*(listener.wait(LONG) for listener in listeners)))
    await elsewhere.close()


async def test_closing_a_bell_or_the_database_tells_who_waits(database: Database) -> None:
    one, two = database.listen("a"), database.listen("a")
    await settle(one)
    await settle(two)
    waits = [asyncio.create_task(each.wait(LONG)) for each in (one, two)]
    await asyncio.sleep(0)

    one.close()
    one.close()
    with pytest.raises(Closed):
        await waits[0]
    await database.close()
    with pytest.raises(Closed):
        await waits[1]
    with pytest.raises(Closed):
        await two.wait(LONG)


@pytest.mark.parametrize("channel", ["", "a\nb", "x" * (CHANNEL_CHARS_MAX + 1), None, 1, "a\0"], ids=repr)
async def test_a_channel_needs_a_short_name_on_one_line(database: Database, channel: str) -> None:
    with pytest.raises(BadInput, match="channel"):
        database.listen(channel)
    with pytest.raises(BadInput, match="channel"):
        await database.write(lambda tx: notify(tx, channel))


async def test_a_ring_is_not_lost_with_the_wait_that_was_cancelled_in_the_same_moment() -> None:
    listeners = DatabaseNotifier()
    listener = listeners.listen("a")
    waiting = asyncio.create_task(listener.wait(LONG))
    await asyncio.sleep(0)

    listeners.notify(["a"])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert await listener.wait(0) is True
    assert len(listeners) == 1
    listener.close()
    assert len(listeners) == 0


async def test_whoever_wants_to_be_called_is_called_at_each_ring_and_for_those_before(database: Database) -> None:
    listener = database.listen("a")
    await settle(listener)
    calls: list[int] = []
    await database.write(lambda tx: notify(tx, "a"))
    await asyncio.sleep(0)
    listener.each(lambda: calls.append(len(calls)))
    await until(lambda: calls == [0])

    await database.write(lambda tx: notify(tx, "a", number=2))
    await until(lambda: calls == [0, 1])
    await database.write(lambda tx: notify(tx, "b", number=3))
    await database.write(lambda tx: notify(tx, "a", number=4))
    await until(lambda: len(calls) > 2)
    assert calls == [0, 1, 2]
    listener.close()
    await database.write(lambda tx: notify(tx, "a", number=5))
    assert calls == [0, 1, 2]


async def test_a_wait_without_a_ring_ends_with_its_time() -> None:
    listener = DatabaseNotifier().listen("a")

    assert await listener.wait(5 * MS) is False
    assert await listener.wait(-1) is False


async def test_all_who_wait_at_one_bell_are_woken() -> None:
    listeners = DatabaseNotifier()
    listener = listeners.listen("a")
    waits = [asyncio.create_task(listener.wait(LONG)) for _ in range(3)]
    await asyncio.sleep(0)

    listeners.notify_all()

    assert await asyncio.gather(*waits) == [True] * 3
    assert await listener.wait(0) is False


async def test_a_ring_in_a_write_that_shares_its_commit_with_a_failing_one_is_heard(database: Database) -> None:
    listener = database.listen("a")
    await settle(listener)

    async def bad(tx: Tx) -> None:
        tx.notify("b")
        raise ValueError

    answers = await asyncio.gather(
        database.write(bad), database.write(partial(insert, number=5)), database.write(lambda tx: notify(tx, "a")),
        return_exceptions=True,
    )  # fmt: skip

    assert [type(each) for each in answers] == [ValueError, int, type(None)]
    assert await listener.wait(LONG) is True
