"""A real Prometheus for tests: on a free loopback port, with its data in a directory of the test's own.

It scrapes what it is told to, evaluates rules if it is given any, and answers questions over its HTTP API. Readiness is
its own answer, and so is that every target was scraped: nothing here sleeps in place of a question. Only the process
that was started here is ended, by its pid.

    with start_prometheus(tmp_path, ["127.0.0.1:8420"]) as prometheus:
        prometheus.query("up")

Where the binary is missing, `PROMETHEUS` is None: `needs_prometheus` marks a test that is then skipped, with a reason.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from support.servers.redis import PORT_ATTEMPTS, free_port

PROMETHEUS: Final = shutil.which("prometheus")
REASON: Final = "no Prometheus: apt-get install prometheus"
JOB: Final = "holdfast"
LIMIT_S: Final = 60.0  # for what is awaited; a test that needs longer is wrong
STOP_LIMIT_S: Final = 15.0

needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason=REASON)


@dataclass(frozen=True)
class Target:
    """One process that is scraped."""

    address: str  # host:port, or the whole address as `holdfast up --json` says it
    job: str = JOB
    labels: Mapping[str, str] = field(default_factory=dict)
    token: str | None = None
    path: str = "/metrics"

    @property
    def place(self) -> str:
        """Host and port."""
        return self.address.partition("://")[2] or self.address


class Point(NamedTuple):
    """One series of an answer at one moment."""

    labels: Mapping[str, str]
    value: float


class Refused(AssertionError):
    """Prometheus did not take a question; with what it said."""


class Prometheus:
    """One running server. Ends only the process that it started."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self.directory = directory
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start, and wait until it says that it is ready. A port that was taken meanwhile is exchanged for another."""
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port()
            with (self.directory / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [*self._command, f"--web.listen-address=127.0.0.1:{self.port}"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the test run, which then ends the server itself
                )
            if self._ready():
                return
        raise RuntimeError(f"Prometheus did not start: {self.log()}")

    def _ready(self) -> bool:
        limit = time.monotonic() + LIMIT_S
        assert self.process is not None
        while self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                if answer.status == 200:
                    return True
            if time.monotonic() > limit:
                self.stop()
                raise RuntimeError(f"Prometheus did not get ready: {self.log()}")
            time.sleep(0.02)  # between two questions, not instead of one
        self.process = None
        return False

    def stop(self) -> None:
        """End it."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)

    def log(self) -> str:
        """The end of the server's log."""
        path = self.directory / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else "(no log)"

    def ask(self, path: str, **parameters: str | float | Sequence[str]) -> Any:
        """The `data` of one answer of its HTTP API, such as `ask("labels")`; `Refused` with what it said instead."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=LIMIT_S) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"{path} {parameters}: {error.read().decode(errors='replace')}") from None
        if said["status"] != "success":
            raise Refused(f"{path} {parameters}: {said}")
        return said["data"]

    def query(self, expression: str, at: float | None = None) -> list[Point]:
        """What an expression is now, or was at a Unix time: one point for each series."""
        moment = {} if at is None else {"time": at}
        data = self.ask("query", query=expression, **moment)
        if data["resultType"] == "scalar":
            return [Point({}, float(data["result"][1]))]
        return [Point(each["metric"], float(each["value"][1])) for each in data["result"]]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """What an expression was over time: `metric` and `values` of each series."""
        found: list[dict[str, Any]] = self.ask("query_range", query=expression, start=start, end=end, step=step)[
            "result"
        ]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Every rule that it evaluates, with its `health`, `state` and `alerts`."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or firing now."""
        found: list[dict[str, Any]] = self.ask("alerts")["alerts"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes, each with its `health` and `lastError`."""
        found: list[dict[str, Any]] = self.ask("targets", state="active")["activeTargets"]
        return found

    def wait_for_targets(self, number: int) -> None:
        """Until so many targets were scraped well, and that can be asked about."""
        self.until(lambda: len(self.query("up == 1")) == number, f"{number} targets scraped", self.targets)

    def wait_for(self, expression: str, accept: Callable[[list[Point]], bool] = bool) -> list[Point]:
        """Until an expression has an answer that is accepted, by default any; the answer."""
        found: list[Point] = []

        def asked() -> bool:
            found[:] = self.query(expression)
            return accept(found)

        self.until(asked, expression, lambda: found)
        return found

    def until(self, condition: Callable[[], bool], what: str, found: Callable[[], object] = lambda: "") -> None:
        """Wait for a condition; `found` says what there was instead."""
        limit = time.monotonic() + LIMIT_S
        while not condition():
            assert self.running, f"Prometheus has ended: {self.log()}"
            assert time.monotonic() < limit, f"not within {LIMIT_S:g} s: {what}; there was: {found()}"
            time.sleep(0.05)  # between two questions, not instead of one


@contextlib.contextmanager
def start_prometheus(
    directory: Path,
    targets: Sequence[Target | str],
    rules: Mapping[str, Any] | str | Path | None = None,
    scrape_interval: str = "200ms",
    evaluation_interval: str = "200ms",
) -> Iterator[Prometheus]:
    """A running server that has scraped every target at least once, for the length of the block.

    `rules`: the path of a file of rules, its text, or the same as a mapping. A scrape may take as long as the interval.
    Skips the test where there is no Prometheus.
    """
    if PROMETHEUS is None:
        pytest.skip(REASON)
    home = directory / "prometheus"
    home.mkdir(parents=True)
    config = _config(home, targets, rules, scrape_interval, evaluation_interval)
    (home / "prometheus.json").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML too
    command = (
        *(PROMETHEUS, f"--config.file={home / 'prometheus.json'}", f"--storage.tsdb.path={home / 'data'}"),
        *("--storage.tsdb.retention.time=1h", "--log.level=warn", "--web.enable-lifecycle"),
    )
    server = Prometheus(home, command)
    try:
        server.start()
        server.wait_for_targets(len(targets))
        yield server
    finally:
        server.stop()


def _config(
    home: Path,
    targets: Sequence[Target | str],
    rules: Mapping[str, Any] | str | Path | None,
    scrape_interval: str,
    evaluation_interval: str,
) -> dict[str, Any]:
    found = [each if isinstance(each, Target) else Target(each) for each in targets]
    every: dict[str, Any] = {"scrape_interval": scrape_interval, "scrape_timeout": scrape_interval}
    return {
        "global": {**every, "evaluation_interval": evaluation_interval},
        "rule_files": [] if rules is None else [str(_rule_file(home, rules))],
        "scrape_configs": [_scraped(group) for group in _groups(found)],
    }


def _groups(targets: Sequence[Target]) -> list[list[Target]]:
    """Those that one scrape configuration can serve: the same job, path and token."""
    groups: dict[tuple[str, str, str | None], list[Target]] = {}
    for each in targets:
        groups.setdefault((each.job, each.path, each.token), []).append(each)
    assert len({job for job, _, _ in groups}) == len(groups), "targets of one job have one path and token"
    return list(groups.values())


def _scraped(group: Sequence[Target]) -> dict[str, Any]:
    first = group[0]
    token = {} if first.token is None else {"authorization": {"credentials": first.token}}
    static = [{"targets": [each.place], "labels": dict(each.labels)} for each in group]
    return {"job_name": first.job, "metrics_path": first.path, "static_configs": static, **token}


def _rule_file(home: Path, rules: Mapping[str, Any] | str | Path) -> Path:
    if isinstance(rules, Path):
        return rules.resolve()
    path = home / "rules.yaml"
    path.write_text(rules if isinstance(rules, str) else json.dumps(rules), encoding="utf-8")
    return path
