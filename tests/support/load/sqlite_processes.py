"""Company for the SQLite tests: other processes at the same file, forked children, and patience."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.engine import SqliteStore
from holdfast.types import NS, AcquireRequest, Busy, Grant

CALL = 20 * NS
PATIENCE = 60.0
LONG = 3600 * NS


# A waiter of a fair lock, as far as the point where it waits.
QUEUE = "asked('x', ticket='x'); watch = run_now(store.watch('k')); asked('x', ticket='x'); say('waits')\n"


def ask(token: str, key: str = "k", ticket: str | None = None) -> AcquireRequest:
    """A request that does not run out while a test runs."""
    return AcquireRequest(
        key, token, f"svc@host:{os.getpid()}/{token}", "default", LONG, ticket, 0 if ticket is None else LONG
    )


def acquire(store: SqliteStore, wanted: AcquireRequest) -> Grant | Busy:
    """Ask once, in blocking code."""
    return run_now(store.acquire(wanted, CALL))


_PREAMBLE = """
import json, os, sys, threading
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.engine import SqliteEngine
from holdfast.types import AcquireRequest, Grant, NS
CALL, LONG = 20 * NS, 3600 * NS
store = SqliteEngine(sys.argv[1]).blocking
def say(*words):
    print(*words, flush=True)
def asked(token, key="k", ticket=None):
    owner = f"svc@host:{os.getpid()}/x"
    return run_now(store.acquire(AcquireRequest(key, token, owner, "default", LONG, ticket, LONG), CALL))
"""


class Other:
    """Another Python process at the same file. It says what it did, line by line."""

    def __init__(self, path: str, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _PREAMBLE + script, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hears(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.stdin = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.returncode


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def waiters(store: SqliteStore) -> int:
    holding = run_now(store.inspect("k", CALL))
    return 0 if holding is None else holding.waiters


def rows(store: SqliteStore, table: str) -> int:
    (count,) = store.leases.file.run(lambda each: each.execute(f"SELECT count(*) FROM {table}").fetchone(), CALL)
    return int(count)


def in_a_child(work: Callable[[], object], fork: Callable[[], int] = os.fork) -> str:
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        child = fork()
    if child == 0:
        try:
            text = repr(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(theirs, text.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:  # noqa: PTH123 - a descriptor, not a path
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text
