"""Health, readiness and metrics in processes without the API: where they are, what they say, and how to do without."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from holdfast.cli.server import probe as probing
from holdfast.cli.server.bind import check_http
from holdfast.cli.server.worker_process import WorkerProcess
from holdfast.errors import BadInput
from holdfast.plane.process import sample
from holdfast.plane.settings.settings import Origin, ProbeSettings, Settings
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, until


def asked(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metric(address: str, name: str) -> float:
    lines = asked(f"{address}/metrics")[1].splitlines()
    (line,) = [each for each in lines if each.startswith(f"{name} ")]
    return float(line.split()[1])


class Working:
    """A running `holdfast worker --json`."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self.process = shell.start("worker", "works:app", "--json", "--url", "sqlite:///plane.db", *words)
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(lambda: self.said("ready"), "a worker that works")

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    def ended(self) -> int:
        until(lambda: self.process.poll() is not None, "the end of a worker")
        self._reader.join()
        return self.process.returncode

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.append(json.loads(line))


def test_a_scheduler_and_a_worker_in_processes_of_their_own_say_how_they_are(shell: Shell) -> None:
    furnish(shell)
    up = Up(shell, "--only", "scheduler,reconciler")
    (started,) = up.said("started")
    assert started["address"] is None
    scheduler = started["probe"]
    assert scheduler.startswith("http://127.0.0.1:")
    working = Working(shell)
    worker = working.said("ready")[0]["probe"]
    for address in (scheduler, worker):
        assert asked(f"{address}/healthz") == (200, '{"status":"alive"}')
        assert json.loads(asked(f"{address}/readyz")[1])["parts"] == {"database": "ok", "bus": "ok", "leases": "ok"}
        assert asked(f"{address}/api/v1/jobs")[0] == 404
    text = asked(f"{scheduler}/metrics")[1]
    assert 'holdfast_loop_interval_seconds{loop="reconciler"} 30.0' in text.splitlines()
    assert 'holdfast_part_running{part="scheduler"} 1.0' in text.splitlines()
    assert metric(worker, "holdfast_worker_capacity") == 8

    here = json.dumps(str(shell.directory))
    shell.run("jobs", "submit", "slow", "--payload", here)
    until((shell.directory / "begun").exists, "a function that runs")
    assert metric(worker, "holdfast_worker_active") == 1
    working.process.send_signal(signal.SIGTERM)
    until(lambda: working.said("draining"), "a worker that drains")
    assert asked(f"{worker}/healthz")[0] == 200
    status, said = asked(f"{worker}/readyz")
    assert (status, json.loads(said)["parts"]) == (503, {"process": "draining"})
    (shell.directory / "go").touch()
    assert working.ended() == 0
    ended = 'holdfast_scheduler_messages_total{outcome="current",subject="job.result"} 1.0'
    until(lambda: ended in asked(f"{scheduler}/metrics")[1].splitlines(), "a result that was written")
    assert up.end().code == 0


def test_beside_the_api_only_a_port_that_was_asked_for_is_opened(shell: Shell) -> None:
    furnish(shell)
    up = Up(shell, "--only", "api", "--probe-port", "0")
    (started,) = up.said("started")
    assert started["probe"] not in (None, started["address"])
    assert asked(f"{started['probe']}/readyz")[0] == asked(f"{started['address']}/readyz")[0] == 200
    assert up.end().code == 0
    settings = Settings()
    assert [probing.wanted(settings, api=api) for api in (True, False)] == [False, True]
    off = replace(settings, probe=ProbeSettings(enabled=False), origins={"probe.port": Origin("flag", "--probe-port")})
    assert [probing.wanted(off, api=api) for api in (True, False)] == [False, False]


def test_a_port_that_is_taken_is_said_with_the_flag_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(probe=ProbeSettings(port=port))
        with pytest.raises(BadInput) as refused, probing.opened(settings):
            raise AssertionError("two on one port")
    assert str(refused.value).startswith(f"probe-port: {port} is in use")
    assert "--probe-port 0 for any; --no-probe disables it" in str(refused.value)


def test_without_an_http_server_a_plane_says_what_to_install_and_a_worker_works_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    settings = Settings()
    with pytest.raises(BadInput, match=r"probe: needs uvicorn, which is not installed.*holdfast\[plane\].*--no-probe"):
        probing.opened(settings).__enter__()
    with pytest.raises(BadInput, match="api: needs uvicorn"):
        check_http("api", "exclude it with --only")
    said: list[tuple[str, str]] = []

    def worker(chosen: Settings) -> WorkerProcess:
        report: Any = lambda event, text, **_: said.append((event, text))  # noqa: E731 - in place of a printer
        return WorkerProcess(sample.app, chosen, None, report)

    with worker(settings)._probe() as probe:
        assert probe is None
    assert said == [("unprobed", "no health and metrics here: uvicorn is not installed (holdfast[plane])")]
    with worker(replace(settings, probe=ProbeSettings(enabled=False)))._probe() as probe:
        assert probe is None
    assert len(said) == 1, "who wants none is not told"
    wanting = replace(settings, origins={"probe.port": Origin("flag", "--probe-port")})
    with pytest.raises(BadInput, match="needs uvicorn"):
        worker(wanting)._probe().__enter__()
