"""Invalid values of every public parameter are refused before anything is sent; the error names field and fix."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import BadInput, Misconfigured, aio
from support.harness.leases import Stage

NAMES: list[Any] = [
    "",
    "a{b}",
    "a}b",
    "line\nbreak",
    "nul\0",
    "tab\t",
    "\x7f",
    "x" * 513,
    "ü" * 257,
    b"bytes",
    None,
    5,
    "\ud800",
    ["list"],
]
DURATIONS: list[Any] = [
    -1.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    1e99,
    10**400,
    True,
    "5",
    [],
    timedelta(days=-1),
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
async def test_a_name_that_no_store_should_see_is_refused(stage: Stage, name: Any) -> None:
    locks = stage.locks()
    for make in (locks.lock, locks.leader):
        with pytest.raises(BadInput) as raised:
            make(name)
        assert raised.value.field == "name"
        assert raised.value.fix
    for ask in (
        lambda: locks.hold(name, ttl=5),
        lambda: locks.inspect(name),
        lambda: locks.force_release(name, reason="drill"),
    ):
        with pytest.raises(BadInput) as raised:
            await ask()
        assert raised.value.field == "name"
    with pytest.raises(BadInput):
        await locks.acquire_token(name, 5)
    if name != "":
        with pytest.raises(BadInput) as raised:
            await locks.list(name)
        assert raised.value.field == "prefix"
    assert not stage.plan.calls


@pytest.mark.parametrize("name", ["invoice:42", "ü", "with space", "日本", "x" * 512, "a/b?c#d%20*[]\\'\""])
async def test_a_name_that_is_merely_unusual_works(stage: Stage, name: str) -> None:
    locks = stage.locks()
    async with locks.lock(name, ttl=5) as lease:
        assert lease.key == name
        assert (await locks.inspect(name)).held


@pytest.mark.parametrize("value", [0, None, *DURATIONS], ids=lambda value: repr(value)[:20])
async def test_a_ttl_that_cannot_be_one_is_refused(stage: Stage, value: Any) -> None:
    locks = stage.locks()
    with pytest.raises(BadInput) as raised:
        locks.lock("k", ttl=value)
    assert raised.value.field == "ttl"
    with pytest.raises(BadInput) as raised:
        await locks.hold("k", ttl=value)
    assert raised.value.field == "ttl"


@pytest.mark.parametrize(
    "field",
    [
        "timeout",
        "renew_every",
        "renew_deadline",
        "max_hold",
        "stall_after",
        "at_least",
        "early_warning",
        "takeover_slo",
        "median_hold",
    ],
)
@pytest.mark.parametrize("value", DURATIONS, ids=lambda value: repr(value)[:20])
async def test_a_duration_that_cannot_be_one_is_refused_by_its_name(stage: Stage, field: str, value: Any) -> None:
    settings: Any = {field: value}
    with pytest.raises(BadInput) as raised:
        stage.locks().lock("k", **settings)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("family", ""),
        ("family", "with space"),
        ("family", None),
        ("family", "x" * 121),
        ("risk", ""),
        ("risk", 5),
        ("risk", "a b"),
        ("failures", 0),
        ("failures", -1),
        ("failures", 101),
        ("failures", 1.5),
        ("failures", True),
        ("failures", "3"),
        ("retry", 0.5),
        ("retry", 0),
        ("retry", "fixed"),
        ("retry", False),
        ("retry", holdfast.backoff.Fixed),
        ("fair", "yes"),
        ("fair", 1),
        ("fair", None),
        ("auto_renew", "no"),
        ("auto_renew", 0),
        ("guarantee", "best"),
        ("guarantee", None),
        ("on_loss", "explode"),
        ("on_loss", None),
        ("on_lost", "print"),
        ("on_warning", 5),
        ("tll", 5),
        ("blocking", True),
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused_by_its_name(stage: Stage, field: str, value: Any) -> None:
    settings: Any = {field: value}
    locks = stage.locks()
    with pytest.raises(BadInput) as raised:
        locks.lock("k", **settings)
    assert raised.value.field == field
    with pytest.raises(BadInput) as decorated:
        locks.exclusive("k", **settings)
    assert decorated.value.field == field
    assert str(decorated.value) == f"{field}: {decorated.value.problem}; {decorated.value.fix}"


async def test_what_the_store_cannot_promise_is_refused(stage: Stage) -> None:
    from dataclasses import replace
    from unittest import mock

    locks = stage.locks()
    weak = replace(locks.capabilities, guarantee=holdfast.Guarantee.EFFICIENCY_ONLY, fair=False)
    with mock.patch("support.faults.faulty_store.CAPABILITIES", weak):
        with pytest.raises(Misconfigured, match="guarantee: memory promises efficiency_only"):
            locks.lock("k", guarantee="fenced")
        with pytest.raises(Misconfigured, match="fair"):
            locks.lock("k", fair=True)
    assert locks.lock("k", guarantee="fenced", fair=True).name == "k"


@pytest.mark.parametrize("value", DURATIONS[:-1], ids=lambda value: repr(value)[:20])
async def test_a_wait_that_cannot_be_one_is_refused(stage: Stage, value: Any) -> None:
    locks = stage.locks()
    with pytest.raises(BadInput) as raised:
        await locks.lock("k").acquire(timeout=value)
    assert raised.value.field == "timeout"
    lease = await locks.lock("k", ttl=5).acquire(timeout=-1)  # forever, as in threading
    with pytest.raises(BadInput) as raised:
        await lease.lost.wait(value)
    assert raised.value.field == "timeout"
    with pytest.raises(BadInput) as raised:
        lease.ensure_held(min_remaining=value)
    assert raised.value.field == "min_remaining"
    with pytest.raises(BadInput) as raised:
        await locks.leader("l").campaign(value)
    assert raised.value.field == "timeout"


@pytest.mark.parametrize("limit", [0, -1, 1_000_001, "5", None, 1.5, True])
async def test_a_limit_that_makes_no_sense_is_refused(stage: Stage, limit: Any) -> None:
    locks = stage.locks()
    for ask in (lambda: locks.list("", limit), lambda: locks.audit(limit)):
        with pytest.raises(BadInput) as raised:
            await ask()
        assert raised.value.field == "limit"


@pytest.mark.parametrize("reason", ["", "  ", None, 5])
async def test_nobody_breaks_a_lock_without_saying_why(stage: Stage, reason: Any) -> None:
    locks = stage.locks()
    lease = await locks.lock("k", ttl=5).acquire()
    with pytest.raises(BadInput) as raised:
        await locks.force_release("k", reason=reason)
    assert raised.value.field == "reason"
    assert (await locks.inspect("k")).fence == lease.fence


async def test_a_policy_switch_is_checked_before_it_is_made(stage: Stage) -> None:
    locks = stage.locks()
    cases: list[tuple[Any, Any, str]] = [
        ("", "wait", "risk"),
        ("low", "maybe", "mode"),
        ("low", None, "mode"),
        (5, "wait", "risk"),
    ]
    for risk, mode, field in cases:
        with pytest.raises(BadInput) as raised:
            locks.policy.set(risk, mode)
        assert raised.value.field == field
    assert locks.policy.history() == []


CONNECTIONS: list[tuple[str, Any]] = [
    ("url", "memory"),
    ("url", "nosuch://host"),
    ("url", "mongodb://host"),
    ("url", 5),
    ("service", "with space"),
    ("service", 5),
    ("instance", "a\nb"),
    ("policy", "fail_open"),
    ("policy", ["low"]),
    ("policy", {"low": "maybe"}),
    ("policy", {"": "wait"}),
    ("policy", 0),
    ("policy_file", 5),
    ("observers", 5),
    ("observers", [object()]),
    ("observers", None),
    ("request_timeout", 0),
    ("request_timeout", -1),
    ("request_timeout", 61),
    ("request_timeout", "2"),
    ("request_timeout", float("nan")),
    ("request_timeout", None),
]


@pytest.mark.parametrize("connect", [holdfast.connect, aio.connect], ids=["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("field", "value"), CONNECTIONS, ids=[f"{field}-{n}" for n, (field, _) in enumerate(CONNECTIONS)]
)
def test_a_connection_that_cannot_be_made_is_refused_by_the_name_of_its_argument(
    connect: Any, field: str, value: Any
) -> None:
    arguments = {"url": "memory://", field: value}
    with pytest.raises(BadInput) as raised:
        connect(**arguments)
    assert raised.value.field.partition(".")[0].partition(" ")[0] == field


def test_a_policy_file_that_is_wrong_from_the_start_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    for text in (None, "[risk]\nlow = 5\n", "nothing", "[risk]\n'a b' = 'wait'\n"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(BadInput, match=r"policy file policy\.toml"):
            holdfast.connect("memory://", policy_file=file)
