"""The lock primitive: exact texts and exact outcomes."""

from __future__ import annotations

import pytest

from holdfast import BadInput, LockBusy, NotOwner, Timeout, Unavailable
from support.harness.leases import Stage


@pytest.mark.requires("R2", "R3", "R24")
async def test_acquire_gives_a_new_token_or_the_empty_string(stage: Stage) -> None:
    locks, others = stage.locks(), stage.locks()
    token = await locks.acquire_token("k", 5)
    assert len(token) >= 32
    assert await others.acquire_token("k", 5) == ""
    assert await locks.acquire_token("k", 5) == ""  # not re-entrant: the caller itself is anyone
    await locks.release_token("k", token)
    again = await locks.acquire_token("k", 5)
    assert again not in {"", token}
    await others.release_token("k", again)  # the token is the proof, not the caller


@pytest.mark.requires("R56")
async def test_acquire_with_a_fence_gives_both_or_says_who_has_the_key(stage: Stage) -> None:
    locks, others = stage.locks(), stage.locks()
    token, fence = await locks.acquire_fenced_token("k", 5)
    with pytest.raises(LockBusy, match=r"^lock busy: k is held by ") as busy:
        await others.acquire_fenced_token("k", 5)
    assert busy.value.key == "k"
    assert busy.value.remaining is not None
    assert 0 < busy.value.remaining <= 5
    await others.renew_token("k", token, 5)
    await others.release_token("k", token)
    again, higher = await others.acquire_fenced_token("k", 5)
    assert again != token
    assert higher > fence


@pytest.mark.requires("R56")
@pytest.mark.parametrize(("trouble", "kind"), [("down", Unavailable), ("silent", Timeout)])
async def test_a_failed_acquire_with_a_fence_says_so_and_keeps_its_cause(
    stage: Stage, trouble: str, kind: type[Exception]
) -> None:
    locks = stage.locks()
    getattr(stage.plan, trouble)("acquire")
    cause = "connection refused" if trouble == "down" else "no answer within the limit"
    with pytest.raises(kind) as raised:
        await locks.acquire_fenced_token("k", 5)
    assert str(raised.value) == f"acquire lock: {cause}"
    assert isinstance(raised.value.__cause__, kind)


@pytest.mark.requires("R4", "R17")
async def test_release_with_a_wrong_token_fails_and_changes_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """TestReleaseLockTokenMismatch: acquire with TTL 5 s, release with a wrong token must fail, `not owned`."""
    locks = stage.locks()
    token = await locks.acquire_token("k", 5)
    with pytest.raises(NotOwner) as raised:
        await locks.release_token("k", "0" * 32)
    assert str(raised.value) == "lock not owned"
    assert "lock release skipped: token mismatch: key=k" in caplog.text
    assert await locks.acquire_token("k", 5) == ""
    await locks.release_token("k", token)
    with pytest.raises(NotOwner) as absent:
        await locks.release_token("k", token)
    assert str(absent.value) == "lock not owned"  # the same for an absent key


@pytest.mark.requires("R18")
async def test_a_lease_cannot_be_renewed_after_it_expired(stage: Stage) -> None:
    """TestRenewLockAfterExpiry: TTL 2 s, advance 3 s, renew with 5 s must fail."""
    stage.stop_time()
    locks = stage.locks()
    token = await locks.acquire_token("k", 2)
    stage.pass_time(3)
    with pytest.raises(NotOwner) as raised:
        await locks.renew_token("k", token, 5)
    assert str(raised.value) == "lock not owned"
    assert not (await locks.inspect("k")).held


@pytest.mark.requires("R1", "R7", "R19")
async def test_the_wrong_owner_is_rejected_and_the_right_one_keeps_the_lock(stage: Stage) -> None:
    """TestRedisJobStoreLockRejectsWrongOwner: A expires, B acquires, A's release must fail and B still owns."""
    stage.stop_time()
    locks = stage.locks()
    a = await locks.acquire_token("k", 2)
    stage.pass_time(3)
    b = await locks.acquire_token("k", 10)
    before = (await locks.inspect("k")).remaining
    for stale in (locks.release_token("k", a), locks.renew_token("k", a, 60)):
        with pytest.raises(NotOwner, match=r"^lock not owned$"):
            await stale
    assert (await locks.inspect("k")).remaining == before
    await locks.renew_token("k", b, 7.5)
    assert (await locks.inspect("k")).remaining == pytest.approx(7.5)
    await locks.release_token("k", b)


@pytest.mark.requires("R5")
async def test_what_is_missing_is_said_without_asking_the_store(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    locks = stage.locks()
    with pytest.raises(NotOwner) as raised:
        await locks.release_token("k", "")
    assert str(raised.value) == "lock token required"
    assert "lock release skipped: missing token" in caplog.text
    await locks.release_token("", "anything")  # an empty key is a silent success
    for key, token in (("", "t"), ("k", "")):
        with pytest.raises(NotOwner) as missing:
            await locks.renew_token(key, token, 5)
        assert str(missing.value) == "lock key and token required"
    assert not stage.plan.calls


@pytest.mark.requires("R6", "R8", "R75")
@pytest.mark.parametrize(("trouble", "kind"), [("down", Unavailable), ("silent", Timeout)])
async def test_a_store_error_names_the_operation_and_keeps_its_cause(
    stage: Stage, trouble: str, kind: type[Exception]
) -> None:
    locks = stage.locks()
    token = await locks.acquire_token("k", 5)
    getattr(stage.plan, trouble)("release", "renew_many", "acquire")
    cause = "connection refused" if trouble == "down" else "no answer within the limit"
    with pytest.raises(kind) as released:
        await locks.release_token("k", token)
    assert str(released.value) == f"job store release lock k: {cause}"
    with pytest.raises(kind) as renewed:
        await locks.renew_token("k", token, 5)
    assert str(renewed.value) == f"job store renew lock k: {cause}"
    with pytest.raises(kind) as acquired:
        await locks.acquire_token("other", 5)
    assert str(acquired.value) == f"job store try acquire lock other: {cause}"
    for raised in (released, renewed, acquired):
        assert isinstance(raised.value.__cause__, kind)
        assert not isinstance(raised.value, NotOwner)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "5", True, None])
async def test_a_ttl_that_is_none_is_refused(stage: Stage, ttl: float) -> None:
    locks = stage.locks()
    for asked in (locks.acquire_token("k", ttl), locks.renew_token("k", "t", ttl)):
        with pytest.raises(BadInput) as raised:
            await asked
        assert raised.value.field == "ttl"
    assert not stage.plan.calls
