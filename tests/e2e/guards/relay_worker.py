"""A process that relays an outbox to a file: one line for each message, written in one step. Runs until it is killed.

python relay_worker.py DATABASE LOG      DATABASE is a postgresql: URL or the path of a SQLite file
"""

from __future__ import annotations

import os
import sqlite3
import sys
from functools import partial
from typing import Any

import psycopg

from holdfast.guards.outbox import OutboxMessage
from holdfast.guards.relay import Relay


def connector(database: str) -> Any:
    """How a relay gets a connection to this database."""
    if database.startswith("postgresql:"):
        return partial(psycopg.connect, database)
    return partial(sqlite3.connect, database, timeout=60)


def main() -> None:
    database, log = sys.argv[1:]
    bus = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def publish(message: OutboxMessage) -> None:
        os.write(bus, f"{message.key} {message.fence} {message.body.decode()} {message.id} {os.getpid()}\n".encode())

    os.write(1, b"ready\n")
    Relay(connector(database), publish).run(0.002)


if __name__ == "__main__":
    main()
