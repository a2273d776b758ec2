"""What is run under the rig to prove the rig: programs that lose what they have acknowledged, and their careful twins.

`power_child.py '["name", …arguments]'`. Each says what it has done with `mark`, after it was done.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg

from support.power.harness import mark


def commit(path: str, synchronous: str, rows: int) -> None:
    """Commit rows, one by one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint = 10")  # so that there are checkpoints to be cut short
        connection.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, fill BLOB)")
        for number in range(rows):
            connection.execute("INSERT INTO row VALUES (?, randomblob(900))", [number])
            mark({"row": number})


def replace(path: str, sync_file: bool, sync_directory: bool, times: int) -> None:
    """Replace a file, again and again."""
    place = Path(path)
    for number in range(times):
        draft = place.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(bytes([number]) * 3000)
            file.flush()
            if sync_file:
                os.fsync(file.fileno())
        draft.replace(place)
        if sync_directory:
            directory = os.open(place.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
        mark({"content": number})


def insert(url: str, synchronous_commit: str, rows: int) -> None:
    """Commit rows to a Postgres, one by one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('synchronous_commit', %s, false)", [synchronous_commit])
        for number in range(rows):
            connection.execute("INSERT INTO careless VALUES (%s)", [number])
            mark({"careless": number})


PROGRAMS: Final[Mapping[str, Callable[..., Any]]] = {"commit": commit, "replace": replace, "insert": insert}

if __name__ == "__main__":
    name, *arguments = json.loads(sys.argv[1])
    PROGRAMS[name](*arguments)
