"""The token is a secret: a canary is planted and everything that anyone could read is searched for it."""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
import traceback

import pytest

from holdfast import HoldfastError
from support.harness.leases import Stage, plain


def shown(error: BaseException) -> str:
    """Everything that is written when an error is: its text, its attributes, its traceback, its pickle."""
    parts = [repr(error), str(error), repr(vars(error)), "".join(traceback.format_exception(error))]
    return "".join(parts) + repr(pickle.dumps(error))


@pytest.mark.threat("X2")
@pytest.mark.requires("R39")
async def test_the_token_appears_nowhere(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stage.stop_time()
    locks, others = stage.locks(policy={"low": "fail_open"}), stage.locks()
    seen: list[str] = []

    def look(*things: object) -> None:
        seen.extend(f"{thing!r} {thing!s}" for thing in things)

    lock = locks.lock("k", ttl=30)
    lease = await lock.acquire()
    look(plain(lease), plain(lock), plain(locks), lease.fingerprint, lease.owner, plain(lease.lost))
    inspection = await others.inspect("k")
    look(inspection, json.dumps(inspection.as_dict()), await others.list(), locks.statistics(), locks.health())
    errors: list[BaseException] = []

    async def failing(work: object) -> None:
        with pytest.raises(HoldfastError) as raised:
            await work  # type: ignore[misc] # any awaitable
        errors.append(raised.value)

    await failing(others.lock("k", ttl=30).acquire(timeout=0))
    await others.force_release("k", reason="drill")
    stage.pass_time(11)
    await failing(lease.renew())
    look(plain(lease), *await others.audit())
    token = await locks.acquire_token("k", 30)
    await failing(locks.release_token("k", token[:-1] + "x" if token.endswith(".") else token + "x"))
    for trouble in ("down", "silent"):
        getattr(stage.plan, trouble)()
        await failing(locks.release_token("k", token))
        await failing(locks.renew_token("k", token, 5))
        await failing(locks.lock("j", ttl=30).acquire())
        await failing(locks.lock("j", ttl=30, risk="high").acquire())
        degraded = await locks.lock("d", ttl=30, risk="low").acquire()
        look(plain(degraded))
        stage.pass_time(20)
        await degraded.release()
        stage.plan.well()
    look(*stage.notes.records, *(dataclasses.asdict(record) for record in stage.notes.records))
    seen += [shown(error) for error in errors]
    seen += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    text = "\n".join(seen)
    assert len(errors) >= 10
    assert len(stage.entropy.tokens) >= 6
    for secret in stage.entropy.tokens:
        assert secret not in text
    assert "c0ffee" not in text


async def test_a_fingerprint_tells_grants_apart_and_nothing_more(stage: Stage) -> None:
    locks = stage.locks()
    marks = set()
    for _ in range(10):
        lease = await locks.lock("k", ttl=5).acquire()
        assert len(lease.fingerprint) == 6
        marks.add(lease.fingerprint)
        assert lease.fingerprint in repr(plain(lease))
        await lease.release()
    assert len(marks) == 10


async def test_a_lease_cannot_be_pickled_away(stage: Stage) -> None:
    lease = await stage.locks().lock("k", ttl=5).acquire()
    with pytest.raises(TypeError, match="belongs to the process that took it"):
        pickle.dumps(plain(lease))
