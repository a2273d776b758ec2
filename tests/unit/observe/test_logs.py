"""Log lines: a text that stays the same, fields beside it, JSON for programs, and no flood in an outage."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.log_rate import LINES_MAX, LogRate
from holdfast.errors import FencedOut, Unavailable
from holdfast.flows import log as saying
from holdfast.flows.log import OutageLog, log_event, log_fields
from holdfast.observe.logs import JsonFormatter, RateLimitedLog, TextFormatter, fields_of

LOG = logging.getLogger("holdfast.test")


class Lines(logging.Handler):
    """Keeps what a formatter makes of records."""

    def __init__(self, form: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(form)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What our loggers say, as JSON."""
    handler, log = Lines(JsonFormatter(service="billing")), logging.getLogger("holdfast")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def error_of(kind: type[Exception], *given: Any, **named: Any) -> Exception:
    """An error that was raised somewhere."""
    try:
        raise kind(*given, **named)
    except Exception as error:
        return error


def test_a_line_is_a_text_and_fields_and_programs_get_them_apart(lines: Lines) -> None:
    assert log_event(LOG, logging.WARNING, "something happened", job="j-1", fence=7, empty="", none=None, share=0.25)
    (told,) = lines.told
    assert told.pop("time").endswith("Z")
    assert told.pop("pid") > 0
    assert told == {
        "level": "warning",
        "logger": "holdfast.test",
        "event": "something happened",
        "thread": "MainThread",
        "service": "billing",
        "holdfast": {"job": "j-1", "fence": 7, "share": 0.25},
    }


def test_the_same_line_for_people(caplog: pytest.LogCaptureFixture) -> None:
    log_event(LOG, logging.WARNING, "something happened", job="j\n1", share=0.25)
    log_event(LOG, logging.WARNING, "nothing more")
    assert caplog.messages == ["something happened: job=j\\n1 share=0.25", "nothing more"]
    assert [Path(each.pathname).name for each in caplog.records] == [Path(__file__).name] * 2


def test_a_store_that_is_away_is_a_field_and_an_unexpected_error_has_a_traceback_once(lines: Lines) -> None:
    for error in (error_of(Unavailable, "away"), *(error_of(ValueError, "a bug") for _ in range(3))):
        log_event(LOG, logging.ERROR, "it failed", error)
    assert [each["holdfast"]["error"] for each in lines.told] == ["Unavailable: away", *["ValueError: a bug"] * 3]
    assert ["exception" in each for each in lines.told] == [False, True, False, False]
    assert "raise kind(*given" in lines.told[1]["exception"]
    log_event(LOG, logging.ERROR, "it failed", error_of(FencedOut, "stale", fence=1, seen=2, key="k", resource="r"))
    assert "exception" in lines.told[-1], "another kind of error is another kind of line"


def test_lines_of_one_text_are_limited_by_themselves_and_the_rest_is_counted(lines: Lines) -> None:
    for number in range(20):
        log_event(LOG, logging.WARNING, "much", number=number)
        log_event(LOG, logging.WARNING, f"{number}")
    assert [each["event"] for each in lines.told].count("much") == LINES_MAX
    assert len(lines.lines) == LINES_MAX + 20
    LOG.setLevel(logging.ERROR)
    try:
        assert not log_event(LOG, logging.WARNING, "not wanted")
    finally:
        LOG.setLevel(logging.NOTSET)
    full = LogRate(lines=1)
    full.enter(0)
    full.enter(0)
    log_fields(LOG, logging.WARNING, "again", {}, rate=full)
    assert [each["event"] for each in lines.told[-2:]] == ["1 more like the following were not logged", "again"]
    assert lines.told[-2]["holdfast"] == {"of": "again"}


def test_texts_by_mistake_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saying, "KINDS_MAX", 10)
    for number in range(100):
        log_event(LOG, logging.WARNING, f"text {number}")
    assert len(saying._rates) <= 11


def test_what_a_filter_drops_does_not_count_against_the_rest(lines: Lines) -> None:
    def unwanted(record: logging.LogRecord) -> bool:
        return fields_of(record).get("key") != "provoked"

    LOG.addFilter(unwanted)
    try:
        for _ in range(100):
            log_event(LOG, logging.WARNING, "refused", key="provoked")
        log_event(LOG, logging.WARNING, "refused", key="real")
    finally:
        LOG.removeFilter(unwanted)
    assert [each["holdfast"] for each in lines.told] == [{"key": "real"}]


def test_a_handler_that_raises_does_not_disturb_the_caller_that_logs() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space")

    log = logging.getLogger("holdfast.broken")
    log.addHandler(Broken())
    assert not log_event(log, logging.ERROR, "some trouble")


def test_trouble_is_said_when_it_begins_and_once_when_it_is_over(lines: Lines) -> None:
    trouble = OutageLog(LOG, "it does not answer", "it answers again", part="bus")
    trouble.ended()
    for _ in range(500):
        trouble.met(error_of(Unavailable, "away"))
    trouble.ended()
    trouble.ended()
    first, last = lines.told
    assert (first["event"], first["holdfast"]) == ("it does not answer", {"part": "bus", "error": "Unavailable: away"})
    assert (last["event"], last["holdfast"]) == ("it answers again", {"part": "bus", "failures": 500})


@pytest.mark.parametrize(("once", "lines_before_the_end"), [(True, 1), (False, 3)])
def test_trouble_that_lasts_is_logged_again_unless_it_is_to_be_logged_once(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, once: bool, lines_before_the_end: int
) -> None:
    monkeypatch.setattr(saying, "LogRate", partial(LogRate, window_ns=0, longest_ns=0))
    trouble = OutageLog(LOG, "it does not answer", "it answers again", once=once)
    for _ in range(3):
        trouble.met()
    trouble.ended()
    assert [each["event"] for each in lines.told] == [
        *["it does not answer"] * lines_before_the_end,
        "it answers again",
    ]


def test_an_outage_that_was_not_logged_ends_silently(lines: Lines) -> None:
    trouble = OutageLog(LOG, "it does not answer", "it answers again", level=logging.DEBUG)
    trouble.met()
    trouble.ended()
    assert lines.lines == []


def test_a_lease_event_says_which_kind_it_is(lines: Lines) -> None:
    with holdfast.connect("memory://") as locks:
        lease = locks.lock("k", ttl=10).acquire()
        locks.force_release("k", reason="drill")
        lease.release()
    kinds = {each["kind"]: each for each in lines.told}
    assert list(kinds) == ["forced", "lost"]
    assert kinds["forced"]["event"] == "lock released by force"
    assert kinds["forced"]["holdfast"]["key"] == "k"
    assert kinds["lost"]["event"] == "lock lost"


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("message", "arguments", "extra"),
    [
        ("%d apples", ("many",), {}),
        ("line\nbreak and \ud800", (), {}),
        ("x", (), {"holdfast": {"a": float("nan"), "b": Unshowable(), "c": {1: (2, {3})}, "d": b"\xff", 5: 6}}),
        ("x", (), {"holdfast": "not a mapping", "holdfast_event": 7}),
    ],
)
def test_whatever_is_in_a_record_is_one_json_object_on_one_line(
    message: str, arguments: tuple[Any, ...], extra: dict[str, Any]
) -> None:
    record = logging.getLogger("any").makeRecord("any", logging.INFO, "f", 1, message, arguments, None, extra=extra)
    for form in (JsonFormatter(), TextFormatter()):
        line = form.format(record)
        assert "\n" not in line
        line.encode()
    assert json.loads(JsonFormatter().format(record))["level"] == "info"


def test_a_traceback_for_people_is_set_in() -> None:
    try:
        raise ValueError("bell\a")
    except ValueError:
        record = LOG.makeRecord("x", logging.ERROR, "f", 1, "it failed", (), sys.exc_info())
    first, *rest = TextFormatter().format(record).split("\n")
    assert first.endswith("Z error it failed")
    assert rest[-1] == "  ValueError: bell\\x07"
    assert all(line.startswith("  ") for line in rest)


def test_what_a_job_logs_carries_its_job() -> None:
    extra = {"job": "j-1", "attempt": 2, "tenant": "blue", "topic": "t", "fence": 9}
    record = LOG.makeRecord("holdfast.plane.job", logging.INFO, "f", 1, "charging", (), None, extra=extra)
    assert JsonFormatter().document(record)["holdfast"] == extra
    others = LOG.makeRecord("theirs", logging.INFO, "f", 1, "x", (), None, extra={"job": "unrelated"})
    assert "holdfast" not in JsonFormatter().document(others)


def test_the_lines_of_drivers_are_limited_too_and_say_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    log, handler = logging.getLogger("a.driver"), Lines(JsonFormatter())
    handler.addFilter(RateLimitedLog())
    log.addHandler(handler)
    log.propagate = False
    try:
        for number in range(100):
            try:
                raise OSError(number)
            except OSError:
                log.warning("connection %d failed", number, exc_info=True)
        logging.getLogger("a.driver").warning("another")
    finally:
        log.removeHandler(handler)
        log.propagate = True
    assert [each["event"] for each in handler.told] == [
        *(f"connection {n} failed" for n in range(LINES_MAX)),
        "another",
    ]
    assert ["exception" in each for each in handler.told] == [True, *[False] * LINES_MAX]
    record = log.makeRecord("a.driver", logging.WARNING, "f", 1, "x", (), None)
    record.left_out = 95
    assert JsonFormatter().document(record)["left_out"] == 95
    assert TextFormatter().format(record).endswith("x (95 more like it were not logged)")
