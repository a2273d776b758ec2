"""The tree of errors: what may be caught by what, what is written on them, and that they travel between processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from holdfast import errors
from holdfast.errors import (
    AcquireTimeout,
    AlreadyHeld,
    BackendError,
    BadExpression,
    BadInput,
    Closed,
    ExpressionFailed,
    FencedOut,
    FenceUnusable,
    HoldfastError,
    LeaseLost,
    LockBusy,
    Misconfigured,
    NotEntered,
    NotOwner,
    PolicyDenied,
    RetryLater,
    RowExists,
    RowMissing,
    Timeout,
    Unavailable,
    Unfenced,
)

SAMPLES: list[HoldfastError] = [
    HoldfastError("text"),
    BadInput("ttl", "is wrong", "fix it"),
    LockBusy("lock busy", key="k", holder="svc@host:1/a", retry_after=0.5),
    AcquireTimeout("still busy", key="k", holder=None, retry_after=1.5),
    AlreadyHeld("already held", key="k", holder="svc@host:1/a"),
    LeaseLost("gone", key="k", reason="stolen", fence=7),
    NotOwner(key="k"),
    FencedOut("stale", fence=3, seen=4, key="k", resource="invoices 42"),
    NotEntered("rolled back", fence=3, seen=None, resource="invoices 42"),
    Unfenced("no fence"),
    RowMissing("nothing there"),
    RowExists("something there"),
    BackendError("broken"),
    Unavailable("not reached"),
    Timeout("no answer"),
    Misconfigured("never"),
    FenceUnusable("soup"),
    PolicyDenied("denied", key="k", risk="money"),
    RetryLater(0.5, "run lock busy"),
    Closed(),
    BadExpression("1 +", "ends too early", 3),
    ExpressionFailed("1 / input.n", "divides by zero", 0),
]


def test_every_error_is_in_the_sample_and_under_the_base() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes == {type(error) for error in SAMPLES}
    assert all(issubclass(each, HoldfastError) for each in classes)


@pytest.mark.parametrize(
    ("child", "parents"),
    [
        (BadInput, (ValueError,)),
        (Closed, (RuntimeError,)),
        (Unfenced, (TypeError,)),
        (RowMissing, (LookupError,)),
        (AcquireTimeout, (LockBusy, TimeoutError)),
        (Unavailable, (BackendError, ConnectionError)),
        (Timeout, (BackendError, TimeoutError)),
        (Misconfigured, (BackendError,)),
        (FenceUnusable, (Misconfigured,)),
    ],
)
def test_errors_can_be_caught_as_what_they_are(child: type[Exception], parents: tuple[type[Exception], ...]) -> None:
    assert all(issubclass(child, parent) for parent in parents)


@pytest.mark.requires("R6", "R8", "R75")
def test_contention_store_trouble_and_loss_are_three_different_paths() -> None:
    paths = [LockBusy, BackendError, LeaseLost, NotOwner, FencedOut, PolicyDenied, BadInput, RetryLater]
    for one in paths:
        for other in paths:
            assert one is other or not issubclass(one, other)


@pytest.mark.requires("R4", "R5")
def test_the_fixed_texts_are_kept() -> None:
    assert str(NotOwner()) == "lock not owned"
    assert errors.LOCK_NOT_OWNED == "lock not owned"
    assert errors.LOCK_TOKEN_REQUIRED == "lock token required"
    assert errors.LOCK_KEY_AND_TOKEN_REQUIRED == "lock key and token required"


def test_bad_input_names_the_field_the_problem_and_the_fix() -> None:
    error = BadInput("ttl", "-1 s is out of range", "give more")
    assert str(error) == "ttl: -1 s is out of range; give more"
    assert (error.field, error.problem, error.fix) == ("ttl", "-1 s is out of range", "give more")


@pytest.mark.requires("R146", "R147", "R148")
def test_retry_later_carries_its_delay_unchanged_and_its_cause() -> None:
    busy = LockBusy("run lock busy")
    error = RetryLater(0.5, busy)
    assert error.delay == 0.5
    assert error.__cause__ is busy
    assert str(error) == "retry after 500ms: run lock busy"
    assert RetryLater(-3).delay == 0.0
    assert RetryLater(1.0, "text").__cause__ is None


def _state(error: BaseException) -> tuple[object, ...]:
    state = {name: str(value) if name == "cause" else value for name, value in vars(error).items()}
    return type(error), str(error), state


@pytest.mark.parametrize(
    "error",
    [pytest.param(each, id=type(each).__name__) for each in SAMPLES],
)
@pytest.mark.parametrize("how", ["pickle", "copy", "deepcopy"])
def test_an_error_arrives_in_another_process_as_it_was(error: HoldfastError, how: str) -> None:
    ways: dict[str, Callable[[HoldfastError], HoldfastError]] = {
        "pickle": lambda each: pickle.loads(pickle.dumps(each)),
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
    }
    assert _state(ways[how](error)) == _state(error)
