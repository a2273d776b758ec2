"""The texts that runbooks search for are said by what they are about, with the fields that tell which one it was."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import HoldfastError
from support.harness.leases import Stage

Act = Callable[[Stage, Any, Any], Awaitable[None]]


async def stale_release(stage: Stage, locks: Any, others: Any) -> None:
    lease = await locks.lock("k", ttl=30).acquire()
    await others.force_release("k", reason="drill")
    await others.lock("k", ttl=30).acquire()
    await lease.release()


async def stale_primitive(stage: Stage, locks: Any, others: Any) -> None:
    with pytest.raises(HoldfastError, match="lock not owned"):
        await locks.release_token("k", "0" * 32)
    with pytest.raises(HoldfastError, match="lock token required"):
        await locks.release_token("k", "")


async def abandoned(stage: Stage, locks: Any, others: Any) -> None:
    for family, ttl in (("workflow.run", 30), ("scheduler.job", 60)):
        await locks.lock(f"of:{family}", ttl=ttl, family=family).acquire()
    stage.plan.down()
    stage.pass_time(70)


async def unreleased(stage: Stage, locks: Any, others: Any) -> None:
    lease = await locks.lock("approve:j-1", ttl=10, family="approval").acquire()
    stage.plan.down()
    await lease.release()


async def fallen_back(stage: Stage, locks: Any, others: Any) -> None:
    stage.plan.down()
    await locks.lock("of:run", ttl=30, family="workflow.run", risk="low").acquire()
    with pytest.raises(HoldfastError):
        await locks.lock("of:pay", ttl=30, family="workflow.run", risk="high").acquire()


SAID: list[tuple[Act, int, str, dict[str, object]]] = [
    (stale_release, logging.WARNING, "lock release skipped: token mismatch", {"key": "k", "error": "lock not owned"}),
    (stale_release, logging.WARNING, "lock released by force", {"key": "k", "error": "drill"}),
    (stale_primitive, logging.WARNING, "lock release skipped: token mismatch", {"key": "k", "error": "lock not owned"}),
    (stale_primitive, logging.WARNING, "lock release skipped: missing token", {"key": "k"}),
    (abandoned, logging.WARNING, "run lock renewal failed", {"key": "of:workflow.run", "family": "workflow.run"}),
    (abandoned, logging.WARNING, "job lock renewal failed", {"key": "of:scheduler.job", "family": "scheduler.job"}),
    (abandoned, logging.ERROR, "job lock lost", {"key": "of:scheduler.job", "reason": "abandoned"}),
    (unreleased, logging.WARNING, "approval lock release failed", {"key": "approve:j-1", "family": "approval"}),
    (
        *(fallen_back, logging.ERROR),
        "distributed lock failed — using local-only lock; a cross-replica race is possible",
        {"key": "of:run", "family": "workflow.run"},
    ),
    (
        *(fallen_back, logging.ERROR),
        "run lock denied: the store is down and the risk class fails closed",
        {"key": "of:pay", "family": "workflow.run"},
    ),
]


@pytest.mark.requires("R13", "R15", "R23", "R85", "R131")
@pytest.mark.parametrize(
    ("act", "level", "text", "fields"), SAID, ids=[f"{each[0].__name__}: {each[2][:40]}" for each in SAID]
)
async def test_it_is_said(
    stage: Stage, caplog: pytest.LogCaptureFixture, act: Act, level: int, text: str, fields: dict[str, object]
) -> None:
    stage.stop_time()
    await act(stage, stage.locks(policy={"low": "fail_open"}), stage.locks())
    found = [each for each in caplog.records if getattr(each, "holdfast_event", None) == text]
    assert found, caplog.messages
    assert {each.levelno for each in found} == {level}
    told: dict[str, object] = vars(found[0])["holdfast"]
    assert {name: told.get(name) for name in fields} == fields
    assert told.get("error") or told.get("reason") or text == "lock release skipped: missing token"
    assert all(f"{name}={value}" in found[0].getMessage() for name, value in fields.items())
    assert found[0].getMessage().startswith(f"{text}: key=")
