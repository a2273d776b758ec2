"""Declaring jobs: which functions can be one, how they are called, and what is refused where it is declared."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.plane import App, Fatal


def plain(payload: Any) -> Any:
    return payload


def by_place(payload: Any, /) -> Any:
    return payload


def context_first(ctx: Any, payload: Any) -> Any:
    return ctx, payload


def context_by_name(payload: Any, *, ctx: Any) -> Any:
    return ctx, payload


def another_name(invoice: Any, ctx: Any = None, extra: int = 3) -> Any:
    return ctx, invoice, extra


def only_number(number: int) -> int:
    return number


async def awaited(ctx: Any, payload: Any) -> Any:
    return ctx, payload


class Charger:
    async def __call__(self, payload: Any) -> Any:
        return payload

    async def charge(self, payload: Any) -> Any:
        return payload


class Maker:
    def __init__(self, payload: Any) -> None:
        self.payload = payload


class Stream:
    def __call__(self, payload: Any) -> Iterator[Any]:
        yield payload


def generator(payload: Any) -> Iterator[Any]:
    yield payload


async def async_generator(payload: Any) -> AsyncIterator[Any]:
    yield payload


@pytest.mark.parametrize(
    ("function", "payload", "answer"),
    [
        (plain, 1, 1),
        (by_place, 1, 1),
        (context_first, 1, ("c", 1)),
        (context_by_name, 1, ("c", 1)),
        (another_name, {"invoice": 1}, ("c", 1, 3)),
        (another_name, {"invoice": 1, "extra": 2}, ("c", 1, 2)),
        (only_number, 1, 1),
        (only_number, {"number": 1}, 1),
        (functools.partial(context_first, "bound"), 1, ("bound", 1)),
        (functools.partial(another_name, extra=4), 1, ("c", 1, 4)),
        (lambda payload, extra=5: (payload, extra), 1, (1, 5)),
        (lambda: "none", None, "none"),
        (lambda ctx: ctx, {}, "c"),
    ],
    ids=[
        *(
            "plain",
            "by place",
            "ctx first",
            "ctx by name",
            "other names",
            "all names",
            "only one",
            "only one by name",
            "partial",
            "partial extra",
        ),
        *("payload and extra", "no payload", "ctx alone"),
    ],
)
def test_a_function_gets_its_arguments_and_the_context_if_it_asks_for_it(
    function: Any, payload: Any, answer: Any
) -> None:
    app = App("billing")
    assert app.job("invoice.charge")(function) is function
    declared = app.functions["invoice.charge"]
    assert (declared.asynchronous, declared.call(payload, "c")) == (False, answer)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (1, "payload: is not an object"),
        ({}, "invoice: is missing"),
        ({"invoice": 1, "more": 2}, "more: is not a parameter"),
        ({"invoice": 1, "extra": "much"}, "extra: Input should be a valid integer"),
    ],
)
def test_a_payload_that_does_not_fit_fails_the_job_for_good(payload: Any, problem: str) -> None:
    app = App("billing")
    app.job("invoice.charge")(another_name)
    with pytest.raises(Fatal, match=problem):
        app.functions["invoice.charge"].call(payload, "c")


@pytest.mark.parametrize("function", [awaited, Charger(), Charger().charge, functools.partial(awaited)])
def test_what_is_to_be_awaited_is_known_as_such(function: Any) -> None:
    app = App("billing")
    app.job("invoice.charge")(function)
    assert app.functions["invoice.charge"].asynchronous


@pytest.mark.parametrize(
    "function",
    [
        generator,
        async_generator,
        Stream(),
        Maker,
        3,
        lambda payload, more: payload,
        lambda *payload: payload,
        lambda ctx, /, payload: payload,
    ],
    ids=[
        *("generator", "async generator", "generating object", "class", "number"),
        *("two", "gathered", "ctx by place"),
    ],
)
def test_what_cannot_run_as_a_job_is_refused_where_it_is_declared(function: Any) -> None:
    app = App("billing")
    with pytest.raises(BadInput) as refused:
        app.job("invoice.charge")(function)
    assert refused.value.field == "function"
    assert not app.functions


def test_a_topic_has_one_function() -> None:
    app = App("billing")
    app.job("invoice.charge")(plain)
    with pytest.raises(BadInput, match=r"invoice\.charge"):
        app.job("invoice.charge")(awaited)
    assert app.functions["invoice.charge"].parameters.function is plain


@pytest.mark.parametrize(
    ("topic", "options", "field"),
    [
        ("", {}, "topic"),
        ("with space", {}, "topic"),
        (None, {}, "topic"),
        ("t", {"pool": "a.b"}, "pool"),
        ("t", {"pool": ""}, "pool"),
        ("t", {"pool": None}, "pool"),
        ("t", {"max_concurrency": 0}, "max_concurrency"),
        ("t", {"max_concurrency": True}, "max_concurrency"),
        ("t", {"max_concurrency": 2.0}, "max_concurrency"),
        ("t", {"timeout": 0}, "timeout"),
        ("t", {"timeout": -1}, "timeout"),
        ("t", {"timeout": "soon"}, "timeout"),
    ],
)
def test_bad_options_are_refused_by_name(topic: Any, options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        App("billing").job(topic, **options)
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["", "two words", "a.b", "-a", "x" * 101, 7, None, "ä"])
def test_bad_names_of_apps_are_refused(name: Any) -> None:
    with pytest.raises(BadInput) as refused:
        App(name)
    assert refused.value.field == "name"


def test_an_app_knows_its_pools_and_their_topics() -> None:
    app = App("billing")
    app.job("b")(plain)
    app.job("a")(plain)
    app.job("c", pool="money")(plain)
    assert app.pools == ("default", "money")
    assert (app.topics("default"), app.topics("money"), app.topics("none")) == (("a", "b"), ("c",), ())
    assert repr(app) == "<App 'billing' 3 topics>"


def test_the_list_of_functions_cannot_be_changed_from_outside() -> None:
    app = App("billing")
    with pytest.raises(TypeError):
        app.functions["a"] = None  # type: ignore[index]
