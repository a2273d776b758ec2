"""Sixteen processes contend for a few locks on Postgres while some are killed: no two are inside together."""

from __future__ import annotations

import random
import subprocess
import sys
from functools import partial

import psycopg
import pytest

from support.campaigns import campaign
from support.load.processes import LIMIT_S, environment, until

pytestmark = pytest.mark.server

PROCESSES = 16
KEYS = 3
TTL_S = 1.0

# A row for each visit: the fence, when it began, and when it ended. A process that was killed inside leaves no end.
_TABLE = "CREATE TABLE visit (key text, fence bigint, came timestamptz, left_at timestamptz, PRIMARY KEY (key, fence))"
_WORKER = """
import random, sys
import holdfast, psycopg
journal = psycopg.connect(sys.argv[1], autocommit=True)
with holdfast.connect(sys.argv[1]) as locks:
    print("ready", flush=True)
    while True:
        key = f"key:{random.randrange(int(sys.argv[2]))}"
        with locks.lock(key, ttl=float(sys.argv[3])) as lease:
            visit = (key, lease.fence)
            journal.execute("INSERT INTO visit VALUES (%s, %s, clock_timestamp(), NULL)", visit)
            journal.execute("UPDATE visit SET left_at = clock_timestamp() WHERE key = %s AND fence = %s", visit)
"""
_WRONG = """
SELECT * FROM (
    SELECT key, fence, came, lag(came) OVER w AS came_before, lag(left_at) OVER w AS left_before
    FROM visit WINDOW w AS (PARTITION BY key ORDER BY fence)
) AS v WHERE came < came_before OR came < left_before
"""


@pytest.mark.requires("R86")
def test_no_two_processes_are_inside_together_while_some_are_killed(postgres_url: str) -> None:
    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _WORKER, postgres_url, str(KEYS), str(TTL_S)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())

    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(_TABLE)

        def visits() -> int:
            row = admin.execute("SELECT count(*) FROM visit WHERE left_at IS NOT NULL").fetchone()
            return 0 if row is None else int(row[0])

        def more_than(number: int) -> bool:
            return visits() > number

        running: list[subprocess.Popen[bytes]] = []
        try:
            running = [start() for _ in range(PROCESSES)]
            for each in running:
                assert each.stdout is not None
                assert each.stdout.readline() == b"ready\n"
            for _ in range(campaign(10, 60)):
                until(partial(more_than, visits() + 10), "the others go on")
                victim = running.pop(random.randrange(len(running)))
                victim.kill()
                victim.communicate(timeout=LIMIT_S)
                if len(running) < PROCESSES // 2:
                    running.append(start())
            assert all(each.poll() is None for each in running)
        finally:
            for each in running:
                each.kill()
                each.communicate(timeout=LIMIT_S)
        assert admin.execute(_WRONG).fetchall() == []
        assert visits() > 0
