"""What operators see and do: holdings, forced releases, the audit; never a token."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.ports import Store
from holdfast.errors import Misconfigured
from support.fixtures.redis import Play
from support.harness.redis_requests import OWNER, SOON, aux_name, give_back, lock_name, take

pytestmark = pytest.mark.server


def test_holdings_are_ours_sorted_and_limited_and_show_no_token(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        grants = [await take(store, f"a[*?]{n:03}") for n in range(280)]
        await take(store, "b")
        redis_raw.set(lock_name(redis_url, "a[*?]foreign"), "someone's token")
        redis_raw.set(lock_name(redis_url, "a[*?]huge"), "x" * 100_000)
        redis_raw.rpush(lock_name(redis_url, "a[*?]list"), "x")
        found = await store.holdings("a[*?]", 1000, SOON)
        assert [each.key for each in found] == [grant.key for grant in grants]
        assert [each.key for each in await store.holdings("a[*?]", 3, SOON)] == [grant.key for grant in grants[:3]]
        assert await store.holdings("a[*?]", 0, SOON) == []
        assert {each.key for each in await store.holdings("", 1000, SOON)} == {grant.key for grant in grants} | {"b"}
        shown = repr(found)
        assert not any(grant.token in shown for grant in grants)
        redis_raw.delete(*redis_raw.keys(f"{lock_name(redis_url, '')}*"))

    play(redis_url, scenario)


def test_a_forced_release_takes_the_key_raises_the_fence_and_is_written_down(
    play: Play, redis_url: str, redis_raw: Any
) -> None:
    async def scenario(store: Store) -> None:
        grant = await take(store, "stuck")
        record = await store.force_release("stuck", "ops@desk", 'it "hung"\nfor hours', SOON)
        assert record is not None
        assert (record.key, record.actor, record.reason) == ("stuck", "ops@desk", 'it "hung"\nfor hours')
        assert (record.previous_owner, record.previous_fence) == (OWNER, grant.fence)
        assert record.fence > grant.fence
        assert (await store.audit(1, SOON)) == [record]
        assert not await give_back(store, grant)
        assert (await take(store, "stuck")).fence > record.fence
        assert grant.token not in repr(redis_raw.xrange(aux_name(redis_url, "audit")))

    play(redis_url, scenario)


def test_the_fence_of_a_forced_release_is_used_up(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        redis_raw.set(aux_name(redis_url, "fence"), 8_000_000_000_000_000)  # far ahead of the clock
        await take(store, "stuck")
        record = await store.force_release("stuck", "ops", "why", SOON)
        assert record is not None
        assert redis_raw.get(aux_name(redis_url, "fence")).partition(".")[0] == str(record.fence)
        assert (await take(store, "stuck")).fence > record.fence

    play(redis_url, scenario)


def test_another_librarys_lock_can_be_forced_and_no_token_is_kept(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        redis_raw.set(lock_name(redis_url, "theirs"), "their-secret", px=30_000)
        record = await store.force_release("theirs", "ops", "why", SOON)
        assert record is not None
        assert (record.previous_owner, record.previous_fence) == ("another library", None)
        assert "their-secret" not in repr(redis_raw.xrange(aux_name(redis_url, "audit")))

    play(redis_url, scenario)


def test_a_foreign_audit_stream_is_a_clear_error(play: Play, redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        redis_raw.xadd(aux_name(redis_url, "audit"), {"something": "else"})
        with pytest.raises(Misconfigured, match="namespace"):
            await store.audit(5, SOON)

    play(redis_url, scenario)
