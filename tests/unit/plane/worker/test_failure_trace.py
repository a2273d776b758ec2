"""The end of a traceback that is stored with a failed attempt: short, readable, and without directories."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.plane.worker.failure_trace import CHARS_MAX, FRAMES_MAX, failure_trace

MEGABYTE = 1_000_000


def fail(text: str = "on purpose") -> None:
    raise ValueError(text)


def deep(left: int) -> None:
    if not left:
        fail()
    deep(left - 1)


def chained(errors: int) -> None:
    try:
        if errors:
            chained(errors - 1)
        fail("the first")
    except ValueError as error:
        raise ValueError(f"the error {errors}") from error


def grouped() -> None:
    raise ExceptionGroup("together", [ValueError(str(each)) for each in range(100)])


def trace_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        call()
    found = failure_trace(caught.value)
    assert found is not None
    return found


def test_it_names_file_line_and_function_and_ends_with_the_error() -> None:
    lines = trace_of(fail).split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert 'test_failure_trace.py", line' in lines[-2]
    assert lines[-2].endswith("in fail")
    assert lines[-1] == "ValueError: on purpose"


def test_it_has_no_source_lines_and_no_values() -> None:
    def charge() -> None:
        password = "hunter2"
        fail(str(len(password)))

    text = trace_of(charge)
    assert "hunter2" not in text
    assert "raise" not in text


@pytest.mark.parametrize(
    ("call", "end"),
    [
        (lambda: fail("x" * MEGABYTE + ">"), "x>"),
        (lambda: fail("line\n" * MEGABYTE + "last"), "last"),
        (lambda: deep(400), "ValueError: on purpose"),
        (lambda: chained(100), "ValueError: the error 100"),
        (grouped, ""),
    ],
    ids=["long line", "many lines", "recursion", "chain", "group"],
)
def test_it_is_short_whatever_was_raised_and_names_no_directory(call: Callable[[], object], end: str) -> None:
    text = trace_of(call)
    assert len(text) <= CHARS_MAX
    assert text.endswith(end)
    assert text.count('  File "') <= 20 * FRAMES_MAX
    assert str(Path(__file__).parent) not in text


def test_characters_that_a_terminal_would_obey_are_replaced() -> None:
    assert trace_of(lambda: fail("red \x1b[31m and \0 end")).endswith("ValueError: red  [31m and   end")


def test_an_error_without_a_frame_of_the_function_has_no_traceback() -> None:
    assert failure_trace(ValueError("never raised")) is None


def test_an_error_that_cannot_describe_itself_is_named() -> None:
    class Mute(Exception):
        @property
        def __cause__(self) -> BaseException | None:  # type: ignore[override]
            raise RuntimeError

    def mute() -> None:
        raise Mute

    assert trace_of(mute).startswith(f"{Mute.__qualname__} (its traceback cannot be shown: ")


def test_a_file_outside_of_the_search_path_has_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret" / "jobs.py"
    path.parent.mkdir()
    path.write_text("def work():\n    raise ValueError('broken')\n")
    scope: dict[str, object] = {"__name__": "jobs"}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    work = scope["work"]
    assert callable(work)
    assert 'File "jobs.py", line 2, in work' in trace_of(work)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert 'File "secret/jobs.py", line 2, in work' in trace_of(work)
