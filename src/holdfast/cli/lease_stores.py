"""The lease store of a command. One rule for `run`, `locks`, `inspect`, `watch`, `release` and `audit`.

The first of these that is given decides:

1. `--url`
2. `--config` or `--database`: the lease store of that plane
3. `$HOLDFAST_LEASES`, `$HOLDFAST_DATABASE` or `$HOLDFAST_CONFIG`: the lease store of that plane
4. `$HOLDFAST_URL`
5. `holdfast.toml` in the working directory: the lease store of that plane
6. the default file of this user, as in `holdfast.connect()` and in a plane without settings

The lease store of a plane is the one that the plane's own processes use: flags before environment before file.

Promises: the store is printed with the result, with the option, variable or file that named it. A command that reads,
or that acts on existing leases, creates no file, directory or table: a missing store is an error, never an empty
answer. Does not promise that the store can be reached: the first request finds out.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import typer

import holdfast
from holdfast.cli.output.screen import named_in_errors, print_note
from holdfast.errors import BadInput, Misconfigured
from holdfast.leases.sync.client import Locks
from holdfast.runtime.run_sync import run_now
from holdfast.stores.registry import (
    DEFAULT_FILE,
    URL_VARIABLE,
    former_file_note,
    former_plane_file,
    open_engine,
    redacted,
    state_directory,
)
from holdfast.stores.sqlite import schema
from holdfast.types import NS

SETTINGS_FILE: Final = "holdfast.toml"
_LOOK_NS: Final = 5 * NS  # in which a server has to answer whether it has lease tables
PLANE_VARIABLES: Final = ("HOLDFAST_LEASES", "HOLDFAST_DATABASE", "HOLDFAST_CONFIG")
_FIX: Final = "name the right store with --url, or its plane with --config or --database"


class LeaseStore(NamedTuple):
    """A lease store, and which option, variable or file named it."""

    url: str
    source: str
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return redacted(self.url)

    def __str__(self) -> str:
        return f"{self.shown} (from {self.source})"

    def fields(self) -> dict[str, str]:
        """The fields of JSON output."""
        return {"store": self.shown, "source": self.source}

    def print(self) -> None:
        """Print the store to stderr, and what a reader might have expected instead."""
        print_note(f"lease store: {self}")
        for note in self.notes:
            print_note(note)


def lease_store(url: str | None, config: str | None = None, database: str | None = None) -> LeaseStore:
    """The lease store of a command; see the top of the module. Opens nothing but the settings file."""
    if url is not None:
        return LeaseStore(url, "--url")
    named = os.environ.get(URL_VARIABLE)
    if config is not None or database is not None or any(map(os.environ.get, PLANE_VARIABLES)):
        return _of_plane(config, database)
    if named:
        unused = f"{SETTINGS_FILE} in this directory is not used; --config {SETTINGS_FILE} names its plane"
        return LeaseStore(named, f"${URL_VARIABLE}", (unused,) if Path(SETTINGS_FILE).exists() else ())
    if Path(SETTINGS_FILE).exists():
        return _of_plane(None, None)
    former = former_plane_file()
    notes = () if former is None else (former_file_note(former),)
    return LeaseStore(f"sqlite:///{quote(str(state_directory() / DEFAULT_FILE))}", "default", notes)


def _of_plane(config: str | None, database: str | None) -> LeaseStore:
    from holdfast.plane.settings.sources import load  # the plane is large, and most commands do without it

    chosen = load(config, flags={"database": database})
    key = "leases" if chosen.leases is not None else "database"
    origin = str(chosen.origin(key))
    source = f"the default database of {chosen.file}" if origin == "default" and chosen.file else origin
    return LeaseStore(chosen.lease_url, source)


@contextmanager
def reading(
    url: str | None, config: str | None, database: str | None, *, tables: bool = True, **options: Any
) -> Iterator[tuple[Locks, LeaseStore]]:
    """Open a store that exists. Creates nothing. The command prints the store with its result.

    `tables`: refuse a Postgres database without lease tables.
    """
    store = lease_store(url, config, database)
    check_exists(store, tables=tables)
    with named_in_errors(f"lease store from {store.source}"), holdfast.connect(store.url, **options) as locks:
        yield locks, store


@contextmanager
def opened(
    url: str | None, config: str | None, database: str | None, **options: Any
) -> Iterator[tuple[Locks, LeaseStore]]:
    """Open a store to take leases in it. A file that does not exist is created."""
    store = lease_store(url, config, database)
    # The default is left to the library, which also creates the directory.
    where = None if store.source == "default" else store.url
    with holdfast.connect(where, **options) as locks:
        yield locks, store


def check_exists(store: LeaseStore, *, tables: bool = True) -> None:
    """Refuse a file that does not exist, a database without lease tables, and the store of a single process."""
    scheme, _, rest = store.url.partition("?")[0].partition("://")
    if scheme.lower() in {"postgresql", "postgres"}:
        if tables and not has_tables(store.url):
            raise Misconfigured(
                f"no lease store in {store.shown} (from {store.source}): the database has no lease tables; {_FIX}"
            )
        return
    if scheme.lower() == "memory":
        raise BadInput("store", "memory:// belongs to one process and cannot be read by another", _FIX)
    if scheme.lower() != "sqlite" or not rest.startswith("/"):
        return
    path = Path(unquote(rest[1:])).absolute()
    if path.is_dir() or (not path.parent.is_dir() and store.source != "default"):
        return  # the store's own error is more exact
    hints = "".join(f"; {note}" for note in store.notes)
    if not path.exists():
        raise BadInput("store", f"no lease store at {path} (from {store.source}){hints}", _FIX)
    if _has_tables(path) is False:
        raise Misconfigured(f"no lease store in {path} (from {store.source}): the file has no lease tables; {_FIX}")


def has_tables(url: str) -> bool:
    """Whether a Postgres database has lease tables. A store of another kind needs none."""
    engine = open_engine(url)  # refuses a URL that is wrong, or a driver that is missing
    from holdfast.stores.postgres.engine import PostgresEngine

    if not isinstance(engine, PostgresEngine):
        return True
    try:
        return run_now(engine.blocking.has_tables(_LOOK_NS))
    finally:
        engine.close()


def _has_tables(path: Path) -> bool | None:
    """Whether a file has the tables of a lease store. None: it cannot be read, and opening it reports the reason."""
    with suppress(sqlite3.Error, UnicodeDecodeError):
        uri = f"file:{quote(str(path))}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return schema.present(connection)
    return None


def url_of(context: typer.Context, url: str | None) -> str | None:
    """The URL given to the command itself, else the one given to `holdfast`."""
    root: str | None = context.obj
    return root if url is None else url
