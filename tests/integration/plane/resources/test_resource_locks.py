"""Resource locks: who holds what, who is turned away, and that fences only rise; on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from holdfast.errors import BadInput, LockBusy, NotOwner
from holdfast.plane.db.open import open_database
from holdfast.plane.resources.client_wait import ClientWait, WaitEnd
from holdfast.plane.resources.forced_release import ResourceBreaks
from holdfast.plane.resources.locks import ResourceLocks
from holdfast.plane.resources.model import (
    BEFORE_ALL,
    READER_BLOCK_NS,
    RETRY_MAX_NS,
    SLOTS,
    ResourceGrant,
    ResourceHolder,
    ResourceMode,
    ResourceRequest,
)
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import NS


@pytest_asyncio.fixture
async def locks(plane_url: str) -> AsyncIterator[ResourceLocks]:
    database = open_database(plane_url)
    made = ResourceLocks(database, SystemClock(), SystemEntropy())
    await made.prepare()
    yield made
    await database.close()


async def take(locks: ResourceLocks, name: str = "pack", **how: Any) -> ResourceGrant:
    return await locks.acquire("blue", name, **{"owner": "me", **how})


@pytest.mark.asyncio
async def test_an_exclusive_holder_is_alone(locks: ResourceLocks) -> None:
    await take(locks, owner="first")
    for mode in ResourceMode:
        with pytest.raises(LockBusy, match="held by first") as busy:
            await take(locks, mode=mode)
        assert (busy.value.holder, busy.value.key) == ("first", "pack")
        assert 0 < busy.value.retry_after <= 2


@pytest.mark.asyncio
async def test_readers_share_and_each_has_a_token_a_fence_and_an_expiry_of_its_own(locks: ResourceLocks) -> None:
    first = await take(locks, owner="first", mode="shared", ttl=100)
    second = await take(locks, owner="second", mode="shared", ttl=1000)
    assert first.token != second.token
    assert first.holder.fence < second.holder.fence
    # A short renewal of one holder does not shorten another's time.
    await locks.renew("blue", "pack", first.token, ttl=10)
    left = {each.owner: each.remaining_ns for each in await locks.holders("blue", "pack")}
    assert left["first"] <= 10 * NS < 900 * NS < left["second"]
    # The release of one holder does not affect the others.
    await locks.release("blue", "pack", first.token)
    assert [each.owner for each in await locks.holders("blue", "pack")] == ["second"]


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", ["", "me", "0" * 32, "é" * 40, "x" * 5000])
async def test_release_and_renewal_by_a_non_owner_say_lock_not_owned_and_change_nothing(
    locks: ResourceLocks, wrong: str
) -> None:
    await take(locks)
    for attempt in (locks.release("blue", "pack", wrong), locks.renew("blue", "pack", wrong)):
        with pytest.raises(NotOwner, match=r"^lock not owned$"):
            await attempt
    assert len(await locks.holders("blue", "pack")) == 1


@pytest.mark.asyncio
async def test_a_token_is_good_for_its_own_tenant_and_resource_only(locks: ResourceLocks) -> None:
    grant = await take(locks)
    for tenant, resource in (("red", "pack"), ("blue", "other")):
        await locks.acquire(tenant, resource, owner="me")
        with pytest.raises(NotOwner):
            await locks.release(tenant, resource, grant.token)


@pytest.mark.asyncio
async def test_the_same_name_of_two_tenants_is_two_resources(locks: ResourceLocks) -> None:
    await locks.acquire("blue", "pack", owner="a")
    await locks.acquire("red", "pack", owner="b")
    assert [each.owner for each in await locks.page("blue")] == ["a"]
    assert [each.owner for each in await locks.page("red")] == ["b"]


@pytest.mark.asyncio
async def test_the_same_ask_with_the_same_token_is_the_same_grant(locks: ResourceLocks) -> None:
    token = "a-token-that-the-caller-made-up-0001"
    first = await take(locks, token=token, ttl=5)
    again = await take(locks, token=token, ttl=50)
    assert (again.token, again.holder.fence) == (token, first.holder.fence)
    assert again.holder.remaining_ns > 5 * NS
    with pytest.raises(BadInput, match="mode"):
        await take(locks, token=token, mode="shared")
    with pytest.raises(BadInput, match="owner: this token holds it as me"):
        await take(locks, token=token, owner="another owner")


@pytest.mark.asyncio
async def test_a_writer_that_was_turned_away_keeps_new_readers_out(locks: ResourceLocks) -> None:
    reader = await take(locks, mode="shared")
    with pytest.raises(LockBusy):
        await take(locks, owner="writer")
    with pytest.raises(LockBusy, match="a writer waits for it"):
        await take(locks, mode="shared", owner="late reader")
    await locks.release("blue", "pack", reader.token)
    writer = await take(locks, owner="writer")
    await locks.release("blue", "pack", writer.token)
    assert (await take(locks, mode="shared")).holder.mode is ResourceMode.SHARED


@pytest.mark.asyncio
async def test_fences_rise_also_when_every_record_of_a_resource_is_gone(locks: ResourceLocks) -> None:
    fences = []
    for _ in range(5):
        grant = await take(locks)
        fences.append(grant.holder.fence)
        await locks.release("blue", "pack", grant.token)
    assert await locks.page("blue") == []
    assert fences == sorted(set(fences))


@pytest.mark.asyncio
async def test_of_many_who_ask_at_once_one_gets_it_and_fences_are_all_different(locks: ResourceLocks) -> None:
    asked = [take(locks, owner=f"w{number}") for number in range(20)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    granted = [each for each in answers if isinstance(each, ResourceGrant)]
    assert len(granted) == 1
    assert sum(isinstance(each, LockBusy) for each in answers) == 19
    many = await asyncio.gather(*(take(locks, "another", mode="shared") for _ in range(20)))
    assert len({each.holder.fence for each in many}) == 20


@pytest.mark.asyncio
async def test_who_waits_gets_it_when_it_is_released(locks: ResourceLocks) -> None:
    held = await take(locks)
    waiting = asyncio.create_task(take(locks, owner="next", timeout=30))
    async with asyncio.timeout(30):
        while not await _readers_blocked(locks):  # noqa: ASYNC110 - what is looked at is in the database
            await asyncio.sleep(0.005)
        await locks.release("blue", "pack", held.token)
        assert (await waiting).holder.fence > held.holder.fence


@pytest.mark.asyncio
async def test_who_waits_is_told_that_it_is_busy_when_the_time_is_over(locks: ResourceLocks) -> None:
    await take(locks)
    with pytest.raises(LockBusy):
        await take(locks, owner="next", timeout=0.05)


@pytest.mark.asyncio
async def test_who_has_left_gets_nothing_and_its_wish_is_gone(locks: ResourceLocks) -> None:
    reader, client = await take(locks, mode="shared"), ClientWait()
    waiting = asyncio.create_task(take(locks, owner="writer", timeout=30, client=client))
    async with asyncio.timeout(30):
        while not await _readers_blocked(locks):  # noqa: ASYNC110 - what is looked at is in the database
            await asyncio.sleep(0.005)
        client.end(WaitEnd.LEFT)
        with pytest.raises(LockBusy, match="no longer waits"):
            await waiting
    assert (await take(locks, owner="late reader", mode="shared")).holder.fence > reader.holder.fence


@pytest.mark.asyncio
@pytest.mark.parametrize("own", [None, "a-token-that-the-caller-made-up-0001"])
async def test_a_grant_to_who_left_meanwhile_is_given_back(locks: ResourceLocks, own: str | None) -> None:
    client = ClientWait()
    client.end(WaitEnd.LEFT)
    with pytest.raises(LockBusy, match="no longer waits"):
        await take(locks, owner="ghost", ttl=3600, token=own, client=client)
    assert await locks.holders("blue", "pack") == []


@pytest.mark.asyncio
async def test_who_holds_a_resource_keeps_it_when_it_asks_again_and_hangs_up(locks: ResourceLocks) -> None:
    token, gone = "a-token-that-the-caller-made-up-0001", ClientWait()
    first = await take(locks, token=token)
    gone.end(WaitEnd.LEFT)
    with pytest.raises(LockBusy, match="no longer waits"):
        await take(locks, token=token, client=gone)
    assert (await locks.release("blue", "pack", token)).fence == first.holder.fence


@pytest.mark.asyncio
@pytest.mark.parametrize("renewed", [True, False])
async def test_a_grant_of_which_its_holder_has_heard_another_way_is_not_given_back(
    locks: ResourceLocks, renewed: bool
) -> None:
    """The connection of the first ask breaks; the caller asks again, or renews, before that is noticed."""
    token = "a-token-that-the-caller-made-up-0001"
    heard_late = await take(locks, token=token, ttl=60)
    request = ResourceRequest("blue", "pack", "me", ResourceMode.EXCLUSIVE, 60 * NS, True, token)
    if renewed:
        await locks.renew("blue", "pack", token, ttl=60)
    else:
        await take(locks, token=token, ttl=60)
    await locks._undo(request, heard_late)
    assert [each.fence for each in await locks.holders("blue", "pack")] == [heard_late.holder.fence]


@pytest.mark.asyncio
async def test_an_ask_that_is_cancelled_on_its_way_holds_nothing(locks: ResourceLocks) -> None:
    for turns in range(12):  # of the event loop: before, while and after it is written
        asking = asyncio.create_task(take(locks, owner="ghost", ttl=3600))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        (answer,) = await asyncio.gather(asking, return_exceptions=True)
        if isinstance(answer, ResourceGrant):  # it was quicker
            await locks.release("blue", "pack", answer.token)
        assert await locks.holders("blue", "pack") == []


@pytest.mark.asyncio
async def test_what_an_operator_takes_away_is_free_at_once_and_leaves_a_record(locks: ResourceLocks) -> None:
    breaks = ResourceBreaks(locks._database, locks)
    readers = [await take(locks, owner=f"r{number}", mode="shared") for number in range(3)]
    with pytest.raises(LockBusy):
        await take(locks, owner="dead writer")
    (one,) = await breaks.force_release("blue", "pack", actor="ann", reason="it hangs", fence=readers[1].holder.fence)
    assert (one.owner, one.actor, one.reason, one.fence) == ("r1", "ann", "it hangs", readers[1].holder.fence)
    with pytest.raises(NotOwner):
        await locks.renew("blue", "pack", readers[1].token)
    waiting = asyncio.create_task(take(locks, owner="next", mode="shared", timeout=30))
    rest = await breaks.force_release("blue", "pack", actor="ann", reason="all of them")
    assert [each.owner for each in rest] == ["r0", "r2"]
    async with asyncio.timeout(30):
        assert (await waiting).holder.fence > readers[2].holder.fence
    assert await breaks.force_release("red", "pack", actor="ann", reason="no holder") == []
    told = await breaks.page("blue")
    assert {each.owner for each in told} == {"r0", "r1", "r2"}
    assert await breaks.page("red") == []
    assert await breaks.page(limit=2) == told[:2]
    assert not any(reader.token in repr(told) for reader in readers)


@pytest.mark.asyncio
@pytest.mark.parametrize(("reason", "actor"), [("", "ann"), ("  ", "ann"), ("a\0b", "ann"), ("why", "")])
async def test_nothing_is_taken_away_without_a_reason_and_a_name(locks: ResourceLocks, reason: str, actor: str) -> None:
    await take(locks)
    with pytest.raises(BadInput):
        await ResourceBreaks(locks._database, locks).force_release("blue", "pack", actor=actor, reason=reason)
    assert len(await locks.holders("blue", "pack")) == 1


@pytest.mark.asyncio
async def test_a_list_is_read_page_by_page_and_shows_no_token(locks: ResourceLocks) -> None:
    grants = [await take(locks, f"r{number % 4}", mode="shared") for number in range(10)]
    seen: list[ResourceHolder] = []
    while page := await locks.page("blue", after=seen[-1].place if seen else BEFORE_ALL, limit=3):
        seen += page
    assert len(seen) == 10
    assert [(each.resource, each.fence) for each in seen] == sorted((each.resource, each.fence) for each in seen)
    assert not any(grant.token in repr(seen) + repr(grants) for grant in grants)


@pytest.mark.asyncio
async def test_records_that_are_over_do_not_pile_up(locks: ResourceLocks) -> None:
    await asyncio.gather(*(take(locks, f"r{number}", ttl=0.1) for number in range(SLOTS)))

    async def left() -> int:
        rows = await locks._database.read(lambda tx: tx.query("SELECT COUNT(*) AS n FROM plane_resource_lock"))
        return int(rows[0]["n"])

    async with asyncio.timeout(60):
        number = 0
        while await left() > SLOTS // 2:
            number += 1
            grant = await take(locks, f"later{number}", ttl=60)
            await locks.release("blue", f"later{number}", grant.token)
    assert await left() <= SLOTS // 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": 3601}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"owner": ""}, "owner"),
        ({"owner": "  "}, "owner"),
        ({"owner": "a\nb"}, "owner"),
        ({"mode": "both"}, "mode"),
        ({"timeout": 31}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"token": "short"}, "token"),
        ({"token": "é" * 40}, "token"),
        ({"name": ""}, "resource"),
        ({"name": " "}, "resource"),
        ({"name": "a{b}"}, "resource"),
    ],
)
async def test_what_cannot_be_right_is_refused_by_name(locks: ResourceLocks, how: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        await take(locks, **how)
    assert refused.value.field == field
    assert "short" not in str(refused.value)


async def _readers_blocked(locks: ResourceLocks) -> bool:
    rows = await locks._database.read(lambda tx: tx.query("SELECT COUNT(*) AS n FROM plane_resource_wish"))
    return bool(rows[0]["n"])


def test_a_writer_who_comes_back_as_told_keeps_its_place() -> None:
    assert 2 * RETRY_MAX_NS < READER_BLOCK_NS
