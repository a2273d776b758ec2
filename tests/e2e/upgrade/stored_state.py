"""Stored states of an older version: databases, lease stores and what their writer knew, as text files.

Points in time (Unix time in nanoseconds) are moved when a state is restored, so that it looks as if the plane had been
killed `DOWN_S` seconds ago. Waiting approvals keep theirs, because an approval contains a digest of its job. Lease rows
name another machine, so only the wall clock ends them.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import redis

STORED: Final = Path(__file__).parent / "stored"
DOWN_S: Final = 10.0
OTHER_MACHINE: Final = "0" * 16

_NS: Final = re.compile(r"(?<![0-9])1[6-9]\d{17}(?![0-9])")


def read(name: str) -> str:
    """The text of a stored file."""
    return gzip.decompress((STORED / f"{name}.gz").read_bytes()).decode()


def write(name: str, text: str) -> None:
    """Store a text."""
    (STORED / f"{name}.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def facts(name: str) -> dict[str, Any]:
    """What the writer of a state knew about it."""
    found: dict[str, Any] = json.loads(read(f"{name}.json"))
    return found


def mover(written_ns: int) -> Callable[[str], str]:
    """Returns a function that moves all points in time in a text."""
    shift = time.time_ns() - round(DOWN_S * 1e9) - written_ns

    def moved(line: str) -> str:
        fixed = "APPROVAL_REQUIRED" in line or "plane_approval" in line
        return line if fixed else _NS.sub(lambda found: str(int(found[0]) + shift), line)

    return lambda text: "\n".join(map(moved, text.split("\n")))


def dump_sqlite(file: Path) -> str:
    """A SQLite database as SQL."""
    with sqlite3.connect(file) as connection:
        text = "\n".join(connection.iterdump())
        ids = {row[0].split(".")[0] for row in _rows(connection, "SELECT clock FROM holdfast_lease")}
        processes = {row[0] for row in _rows(connection, "SELECT process FROM holdfast_lease WHERE process <> ''")}
    connection.close()
    for each in processes:
        text = text.replace(each, "")
    for each in ids:
        text = text.replace(each, OTHER_MACHINE)
    return text


def _rows(connection: sqlite3.Connection, statement: str) -> list[Any]:
    try:
        return connection.execute(statement).fetchall()
    except sqlite3.OperationalError:
        return []  # a database without leases


def load_sqlite(file: Path, text: str) -> None:
    """Make a SQLite database from SQL."""
    connection = sqlite3.connect(file)
    connection.executescript(text)
    connection.close()
    file.chmod(0o600)


def dump_postgres(folder: str, url: str) -> str:
    """A Postgres database as SQL."""
    words = [f"{folder}/pg_dump", "--inserts", "--no-owner", "--no-privileges", "--schema=public", url]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    # Commands of psql, settings of newer servers, and the schema, which every database has.
    kept = (
        line for line in text.splitlines() if not re.match(r"\\|SET |SELECT pg_catalog|CREATE SCHEMA|COMMENT", line)
    )
    return "\n".join(kept)


def dump_redis(client: redis.Redis) -> str:
    """A Redis database as JSON lines: key, time to live in milliseconds, and the command that restores the value."""
    return "\n".join(json.dumps(each) for each in _commands(client))


def _commands(client: Any) -> Iterator[Any]:
    """Of the types that leases use: strings and, for fair locks, hashes and lists."""
    for key in sorted(client.scan_iter()):
        kind = client.type(key)
        if kind == b"string":
            words = ["SET", key, client.get(key)]
        elif kind == b"hash":
            words = ["HSET", key, *(each for pair in client.hgetall(key).items() for each in pair)]
        else:
            assert kind == b"list", kind
            words = ["RPUSH", key, *client.lrange(key, 0, -1)]
        yield [client.pttl(key), [_text(each) for each in words]]


def _text(word: str | bytes) -> str:
    return base64.b64encode(word.encode() if isinstance(word, str) else word).decode()


def load_redis(client: Any, text: str) -> None:
    """Restore a Redis database."""
    for line in text.splitlines():
        ttl_ms, words = json.loads(line)
        plain = [base64.b64decode(each) for each in words]
        client.execute_command(*plain)
        if ttl_ms >= 0:
            client.pexpire(plain[1], ttl_ms)
