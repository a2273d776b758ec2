"""Everything that is guarded, for the demonstrations with real processes: a new guard is one line in PLACES.

A place says how the storage of one test is made, and returns the factory of its subjects, which the workers are given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Factory: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True)
class Place:
    """Where things are written."""

    name: str
    made: Callable[[pytest.FixtureRequest], Factory]
    server: bool = False

    sender_counts: bool = True  # False: a lost lease is found by a function that stamps a message, and counts nothing

    def __str__(self) -> str:
        return self.name


def _folder(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue("tmp_path")
    return folder


def _sqlite(request: pytest.FixtureRequest) -> Factory:
    from support.guards.subjects_sqlite import prepared

    return prepared(_folder(request))


def _sqlalchemy(subject: str, request: pytest.FixtureRequest) -> Factory:
    from support.guards import subjects_sqlalchemy as subjects

    url = subjects.sqlite_url(_folder(request) / "app.db")
    subjects.prepare(url, subjects.Base.metadata)
    return partial(getattr(subjects, subject), url)


def _sqlalchemy_on_postgres(subject: str, request: pytest.FixtureRequest) -> Factory:
    from support.guards import subjects_sqlalchemy as subjects

    url: str = request.getfixturevalue("newest_postgres_url")
    subjects.prepare(url, subjects.Base.metadata)
    return partial(getattr(subjects, subject), url)


def _postgres(opened: str, request: pytest.FixtureRequest) -> Factory:
    from support.guards import subjects_postgres as subjects

    factory: Factory = getattr(subjects, opened)(request.getfixturevalue("newest_postgres_url"))
    return factory


def _redis(subject: str, request: pytest.FixtureRequest) -> Factory:
    from support.guards import subjects_redis as subjects

    return partial(getattr(subjects, subject), request.getfixturevalue("newest_redis").url)


def _files(subject: str, request: pytest.FixtureRequest) -> Factory:
    from support.guards import subjects_files as subjects

    folder = _folder(request) / "guarded"
    folder.mkdir()
    return partial(getattr(subjects, subject), str(folder))


def _http(subject: str, request: pytest.FixtureRequest) -> Factory:
    from support.guards import subjects_http as subjects

    return partial(getattr(subjects, subject), request.getfixturevalue("document_service"))


def _messages(request: pytest.FixtureRequest) -> Factory:
    from support.guards.subjects_messages import open_message

    return partial(open_message, str(_folder(request)))


def _outbox(request: pytest.FixtureRequest) -> Factory:
    from holdfast.guards.outbox import prepare
    from support.guards.subjects_messages import open_outbox

    path = str(_folder(request) / "app.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        prepare(connection)
    return partial(open_outbox, path)


def _outbox_on_postgres(request: pytest.FixtureRequest) -> Factory:
    import psycopg

    from holdfast.guards.outbox import prepare
    from support.guards.subjects_messages import open_outbox

    url: str = request.getfixturevalue("newest_postgres_url")
    with psycopg.connect(url, autocommit=True) as connection:
        prepare(connection)
    return partial(open_outbox, url)


PLACES = [
    Place("sqlite", _sqlite),
    Place("postgres", partial(_postgres, "prepared"), server=True),
    Place("postgres-asyncio", partial(_postgres, "prepared_async"), server=True),
    Place("sqlalchemy-core", partial(_sqlalchemy, "CoreSubject")),
    Place("sqlalchemy-orm", partial(_sqlalchemy, "EntitySubject")),
    Place("sqlalchemy-core-postgres", partial(_sqlalchemy_on_postgres, "CoreSubject"), server=True),
    Place("sqlalchemy-orm-postgres", partial(_sqlalchemy_on_postgres, "EntitySubject"), server=True),
    Place("redis-string", partial(_redis, "StringSubject"), server=True),
    Place("redis-hash-asyncio", partial(_redis, "AsyncHashSubject"), server=True),
    Place("files", partial(_files, "open_file")),
    Place("files-asyncio", partial(_files, "open_awaited_file")),
    Place("httpx", partial(_http, "HttpSubject"), server=True),
    Place("httpx-asyncio", partial(_http, "AsyncHttpSubject"), server=True),
    Place("requests", partial(_http, "RequestsSubject"), server=True),
    Place("messages", _messages, sender_counts=False),
    Place("outbox", _outbox),
    Place("outbox-postgres", _outbox_on_postgres, server=True),
]


def every_place(*, colours: bool = False) -> list[Any]:
    """The places as parameters. `colors`: both of them."""
    return [
        pytest.param(place, id=str(place), marks=[pytest.mark.server] if place.server else [])
        for place in PLACES
        if colours or not place.name.endswith("-asyncio")
    ]
