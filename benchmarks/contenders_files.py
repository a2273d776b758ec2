"""Who takes part in the scenarios of one machine without a server: a file instead."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import holdfast
from benchmarks.contender import TTL_S, Connect, Contender, Cycle, Make, Place, Role, module
from benchmarks.contenders_redis import HoldfastCycle


@contextmanager
def _holdfast(place: Place) -> Iterator[Make]:
    with holdfast.connect(f"sqlite:///{place.directory / 'leases.db'}") as locks:
        yield lambda key: HoldfastCycle(locks.lock(key, ttl=TTL_S))


def _filelock(kind: str) -> Callable[[Place], AbstractContextManager[Make]]:
    @contextmanager
    def connect(place: Place) -> Iterator[Make]:
        lock_type = getattr(module("filelock"), kind)

        def make(key: str) -> Cycle:
            lock: Cycle = lock_type(place.directory / f"{key}.{kind}")
            return lock

        yield make

    return connect


@contextmanager
def _diskcache(place: Place) -> Iterator[Make]:
    diskcache = module("diskcache")
    with diskcache.Cache(str(place.directory / "diskcache"), eviction_policy="none") as cache:

        def make(key: str) -> Cycle:
            lock: Cycle = diskcache.Lock(cache, key, expire=TTL_S)
            return lock

        yield make


class RawSqliteCycle:
    """A row put in and taken out, in two transactions, with the settings that Holdfast uses."""

    def __init__(self, connection: sqlite3.Connection, key: str) -> None:
        self._execute = connection.execute
        self._key = key
        self._token = ""

    def acquire(self) -> object:
        """One transaction."""
        self._token = os.urandom(16).hex()
        self._execute("BEGIN IMMEDIATE")
        self._execute("INSERT INTO lease (key, token, fence) VALUES (?, ?, ?)", (self._key, self._token, 1))
        return self._execute("COMMIT")

    def release(self) -> object:
        """One transaction."""
        self._execute("BEGIN IMMEDIATE")
        self._execute("DELETE FROM lease WHERE key = ? AND token = ?", (self._key, self._token))
        return self._execute("COMMIT")


@contextmanager
def _raw(place: Place) -> Iterator[Make]:
    with closing(sqlite3.connect(place.directory / "raw.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS lease (key TEXT PRIMARY KEY, token TEXT, fence INTEGER) WITHOUT ROWID"
        )
        yield lambda key: RawSqliteCycle(connection, key)


HOLDFAST: Contender[Connect] = Contender("holdfast", Role.OURS, "holdfast", _holdfast)
FILE_LOCK: Contender[Connect] = Contender("filelock", Role.PEER, "filelock", _filelock("FileLock"))
SOFT_FILE_LOCK: Contender[Connect] = Contender("filelock-soft", Role.PEER, "filelock", _filelock("SoftFileLock"))
DISKCACHE: Contender[Connect] = Contender("diskcache", Role.PEER, "diskcache", _diskcache)
RAW: Contender[Connect] = Contender("raw", Role.RAW, "sqlite3", _raw)

ALONE = (HOLDFAST, FILE_LOCK, SOFT_FILE_LOCK, DISKCACHE, RAW)
WAITING = (HOLDFAST, FILE_LOCK, SOFT_FILE_LOCK, DISKCACHE)
