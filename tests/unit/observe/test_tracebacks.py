"""A traceback in a log is of bounded length, whatever was raised, and keeps how it began and how it ended."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast.observe.logs import (
    CHARS_MAX,
    DEPTH_MAX,
    LINES_MAX,
    JsonFormatter,
    TextFormatter,
    bounded,
    message_of,
    traced,
)
from holdfast.plane.model import outcome

MEGABYTE = 1_000_000


def ping(left: int) -> None:
    if not left:
        raise ValueError("at the bottom")
    pong(left - 1)


def pong(left: int) -> None:
    ping(left)


@contextmanager
def room_for(frames: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        call()
    return caught.value


def one_long_line() -> None:
    raise ValueError("<" + "x" * MEGABYTE + ">")


def many_lines() -> None:
    raise ValueError("first\n" + "line\n" * MEGABYTE + "last")


def chained(errors: int = 300) -> None:
    try:
        if errors:
            chained(errors - 1)
        raise KeyError("the first")
    except LookupError as error:
        raise LookupError(f"the error {errors}") from error


def grouped() -> None:
    raise ExceptionGroup("together", [ValueError("y" * MEGABYTE), *(ValueError(str(each)) for each in range(500))])


@pytest.mark.parametrize(
    ("call", "end"),
    [
        (one_long_line, "x>"),
        (many_lines, "last"),
        (lambda: ping(400), "ValueError: at the bottom"),
        (chained, "LookupError: the error 300"),
        (grouped, ""),
    ],
    ids=["one long line", "many lines", "recursion", "chain", "group"],
)
def test_whatever_was_raised_its_traceback_is_short_and_keeps_both_ends(call: Callable[[], object], end: str) -> None:
    text = traced(raised(call))
    assert len(text) <= CHARS_MAX + 100
    assert len(text.split("\n")) <= LINES_MAX + 1
    assert sum("… left out: " in line for line in text.split("\n")) == 1
    assert "Traceback (most recent call last):" in text.split("\n")[0]
    assert text.endswith(end)


def test_what_is_left_out_is_counted() -> None:
    error = raised(lambda: ping(400))
    whole = "".join(traceback.format_exception(error)).rstrip("\n")
    beginning, _, rest = traced(error).partition("\n  … left out: ")
    counted, _, end = rest.partition(" …\n")
    assert whole.startswith(beginning)
    assert whole.endswith(end)
    middle = whole[len(beginning) : len(whole) - len(end)].strip("\n")
    frames = middle.count('  File "')
    assert frames > 100
    assert counted == f"{len(middle):,} characters, {middle.count(chr(10)):,} line ends, {frames:,} frames"


def test_a_recursion_without_end_is_not_even_looked_at_as_a_whole() -> None:
    depth = 10 * DEPTH_MAX
    with room_for(3 * depth):
        error = raised(lambda: ping(depth))
        text = traced(error)
        frames = 0
        trace = error.__traceback__
        while trace is not None:
            frames, trace = frames + 1, trace.tb_next
    (line,) = [each for each in text.split("\n") if "left out" in each]
    left_out = int(line.partition(" line ends, ")[2].partition(" frames")[0].replace(",", ""))
    assert left_out == frames - text.count('  File "')
    assert text.endswith("ValueError: at the bottom")


def test_the_frames_of_a_function_that_calls_itself_are_counted_too() -> None:
    def deeper(left: int) -> None:
        if not left:
            raise ValueError("at the bottom")
        deeper(left - 1)

    with room_for(5 * DEPTH_MAX):
        text = traced(raised(lambda: deeper(3 * DEPTH_MAX)))
    *_, said, last = text.split("\n")
    assert last == "ValueError: at the bottom"
    assert said.startswith("  … left out: 4,0")
    assert said.endswith(" frames …")


def test_a_short_one_is_left_as_it_is() -> None:
    error = raised(lambda: int("x"))
    assert traced(error) == "".join(traceback.format_exception(error)).rstrip("\n")
    assert bounded("one\ntwo") == "one\ntwo"


def test_an_error_that_cannot_describe_itself_is_told_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise Mute

    error = raised(fail)
    assert "Mute" in traced(error)
    assert message_of(error) == "Mute"


def test_both_formats_of_log_lines_are_bounded_and_so_is_the_text_of_other_software() -> None:
    error = raised(one_long_line)
    record = logging.getLogger("x").makeRecord(
        "x", logging.ERROR, "f", 1, "it failed", (), (type(error), error, error.__traceback__)
    )
    formatted = logging.getLogger("x").makeRecord("x", logging.ERROR, "f", 1, "it failed", (), None)
    formatted.exc_text = "y" * MEGABYTE
    for form in (JsonFormatter(), TextFormatter()):
        for each in (record, formatted):
            assert len(form.format(each)) < 2 * CHARS_MAX


def test_what_is_kept_with_the_job_is_the_beginning_of_the_message() -> None:
    for call in (one_long_line, many_lines, lambda: ping(400)):
        reason = outcome.raised(raised(call)).error
        assert reason is not None
        assert len(reason) <= outcome.ERROR_CHARS_MAX
        assert reason.startswith("ValueError: ")
