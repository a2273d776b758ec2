"""What `holdfast up` and `holdfast worker` log: in the chosen format, from the chosen level up, without blocking."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from dataclasses import replace

import pytest

from holdfast.cli.output import async_writer
from holdfast.cli.server.log_format import chosen_format, log_lines
from holdfast.flows.log import log_event
from holdfast.plane.settings.sections import LogSettings
from holdfast.plane.settings.settings import Origin, Settings
from support.cli.planes import furnish
from support.cli.sessions import Shell

OURS = logging.getLogger("holdfast.plane")


def written(level: str, *, as_json: bool, capsys: pytest.CaptureFixture[str]) -> list[str]:
    settings = replace(Settings(), log=LogSettings(level=level))
    with log_lines(settings, "up", as_json=as_json):
        OURS.debug("a detail")
        log_event(OURS, logging.INFO, "some news", job="j-1")
        log_event(OURS, logging.WARNING, "some trouble", job="j-1")
        logging.getLogger("a.driver").info("driving")
        logging.getLogger("a.driver").warning("driving badly")
        warnings.warn("do not", stacklevel=1)
    OURS.warning("not shown here")
    return capsys.readouterr().err.splitlines()


@pytest.mark.filterwarnings("always")
def test_every_line_is_json_if_that_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger("holdfast").handlers[:], logging.getLogger().handlers[:], logging.getLogger().level
    lines = [json.loads(line) for line in written("info", as_json=True, capsys=capsys)]
    events = [line["event"].splitlines()[0] for line in lines]
    assert events[:3] == ["some news", "some trouble", "driving badly"]
    assert "UserWarning: do not" in events[3]
    assert {line["process"] for line in lines} == {"up"}
    assert lines[0]["holdfast"] == {"job": "j-1"}
    after = logging.getLogger("holdfast").handlers[:], logging.getLogger().handlers[:], logging.getLogger().level
    assert before == after


@pytest.mark.filterwarnings("always")
def test_lines_for_people_begin_at_warnings_and_details_of_drivers_are_for_debugging(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = written("warning", as_json=False, capsys=capsys)
    assert [line.split(" ", 1)[1] for line in lines[:2]] == [
        "warning some trouble: job=j-1",
        "warning driving badly",
    ]
    everything = written("debug", as_json=False, capsys=capsys)
    assert {"debug a detail", "info driving"} <= {line.split(" ", 1)[1] for line in everything}


def test_a_format_that_was_asked_for_is_kept_whatever_else_is_json() -> None:
    settings = Settings()
    assert [chosen_format(settings, as_json=each) for each in (True, False)] == ["json", "text"]
    asked = replace(settings, origins={"log.format": Origin("flag", "--log-format")})
    assert chosen_format(asked, as_json=True) == "text"


def test_no_job_waits_for_a_stalled_reader_and_dropped_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, reading, blocked = list[str](), threading.Event(), threading.Event()

    def write(stream: object, line: str) -> None:
        blocked.set()
        assert reading.wait(60)
        shown.append(line)

    monkeypatch.setattr(async_writer, "write_past", write)
    monkeypatch.setattr(async_writer, "ROOM", 10)
    with log_lines(Settings(), "up", as_json=True):
        OURS.warning("the first")
        assert blocked.wait(60)
        for number in range(100):
            OURS.warning(f"line {number}")
        assert shown == []
        reading.set()
    told = [json.loads(line)["event"] for line in shown]
    assert told[0] == "the first"
    assert "90 log lines were dropped, because standard error was not read" in told
    assert told[-1] == "line 9"


@pytest.mark.parametrize("words", [("--log-format", "xml"), ("--log-level", "loud")], ids=" ".join)
@pytest.mark.parametrize("command", [("up", "--check"), ("worker", "works:app")], ids=lambda words: words[0])
def test_what_is_no_choice_is_refused(shell: Shell, command: tuple[str, ...], words: tuple[str, ...]) -> None:
    furnish(shell)
    done = shell.run(*command, *words)
    assert (done.code, done.out) == (64, "")
    assert f"'{words[1]}' is not a choice" in done.err
