"""Databases for the SQLAlchemy guards: a SQLite file, and then the newest Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from servers_postgres import PostgresExecutable, PostgresServer, postgres_executables

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.orm import Session

OpenSession: TypeAlias = "Callable[[], Session]"

_POSTGRES = [pytest.param(each, id=str(each), marks=pytest.mark.server) for each in postgres_executables()[-1:]]


@pytest.fixture(params=[pytest.param(None, id="sqlite"), *_POSTGRES])
def database_url(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
) -> Iterator[str]:
    """An empty database of this test's own."""
    if request.param is None:
        yield f"sqlite:///{tmp_path / 'app.db'}"
        return
    with _postgres_servers(request.param).database() as url:
        yield url


@pytest.fixture
def impatient_engine(database_url: str) -> Iterator[sa.Engine]:
    """An engine whose connections do not wait for locks."""
    from sqlalchemy import event

    from guard_subjects_sqlalchemy import engine_for

    engine = engine_for(database_url)

    @event.listens_for(engine, "connect")
    def _(dbapi: Any, _record: object) -> None:
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA busy_timeout = 1" if engine.dialect.name == "sqlite" else "SET lock_timeout = '1ms'")
        cursor.close()
        dbapi.commit()

    yield engine
    engine.dispose()


@pytest.fixture
def open_session(database_url: str, impatient_engine: sa.Engine) -> Iterator[OpenSession]:
    """Opens sessions on a database that has the tables of `sqlalchemy_entities`. All are closed at the end."""
    from sqlalchemy.orm import Session

    from guard_subjects_sqlalchemy import prepare
    from sqlalchemy_entities import Base

    prepare(database_url, Base.metadata)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Session(impatient_engine))
