"""Which database a URL means. Imports an engine only when it is requested, so that its driver stays optional.

Promises: a URL is understood or refused before anything is opened or sent; what is refused says what would be accepted;
no password appears in any text made here. Does not promise that the database can be reached: it connects when used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import parse_qsl, unquote, urlencode

from holdfast.core.duration_text import parse_duration_ns
from holdfast.core.ports import Clock
from holdfast.errors import BadInput
from holdfast.plane.db.ports import Database
from holdfast.plane.db.read_only import ReadOnlyDatabase
from holdfast.plane.db.sqlite import read_only
from holdfast.plane.db.sqlite.database import BUSY_TIMEOUT_NS, SqliteDatabase
from holdfast.runtime.postgres_driver import missing_driver
from holdfast.stores.registry import redacted

_SQLITE_OPTIONS: Final = ("busy_timeout", "synchronous")
_POSTGRES_OPTIONS: Final = ("pool_max", "pool_timeout")
_POSTGRES_SCHEMES: Final = ("postgresql", "postgres")
_POOL_MAX: Final = 1000
_EXAMPLES: Final = "use sqlite:///plane.db or postgresql://user@host/database"


def open_database(url: str, *, clock: Clock | None = None, read_only: bool = False) -> Database:
    """Open the database that a URL names. `read_only`: nothing is created or written.

    `sqlite:///plane.db` is a file in the working directory, `sqlite:////var/lib/plane.db` an absolute path. Options:
    `?synchronous=full|normal` (full is the default) and `?busy_timeout=SECONDS`.

    `postgresql://user:password@host:5432/database` takes every option of Postgres's own library, and `?pool_max=NUMBER`
    and `?pool_timeout=SECONDS`.
    """
    if not isinstance(url, str):
        raise BadInput("url", f"{type(url).__name__} is not a URL", _EXAMPLES)
    if "\0" in url:
        raise BadInput("url", "contains a zero byte", "remove it")
    scheme, mark, _rest = url.partition("://")
    if not mark:
        raise BadInput("url", f"{redacted(url)!r} has no scheme", _EXAMPLES)
    if scheme.lower() == "sqlite":
        found = _sqlite(url, clock, read_only=read_only)
    elif scheme.lower().partition("+")[0] in _POSTGRES_SCHEMES:
        found = _postgres(url, clock)
    else:
        raise BadInput("url", f"{scheme}:// is not a database of the plane", _EXAMPLES)
    return ReadOnlyDatabase(found) if read_only else found


def check_there(url: str) -> None:
    """Refuse a missing file, before a command that acts on its content creates an empty one."""
    if url.lower().startswith("sqlite:"):
        read_only.check_there(str(Path(_path(url)).absolute()))


def _path(url: str) -> str:
    """The file that a URL of SQLite names."""
    path = unquote(url.partition("?")[0].partition("://")[2])
    fix = "use sqlite:///name.db or sqlite:////absolute/path.db"
    if not path.startswith("/") or path == "/" or path.endswith("/") or "\0" in path:
        raise BadInput("url", f"{redacted(url)!r} does not name a file", fix)
    if path == "/:memory:" or path.startswith("/file:"):
        raise BadInput("url", f"{redacted(url)!r} is not a file that other processes can open", fix)
    return path[1:]


def _sqlite(url: str, clock: Clock | None, *, read_only: bool) -> Database:
    path, query = _path(url), url.partition("?")[2]
    options = _options(query, _SQLITE_OPTIONS)
    synchronous = options.get("synchronous", "full").lower()
    if synchronous not in {"full", "normal"}:
        raise BadInput("synchronous", f"{synchronous!r} is not a way to commit", "use full or normal")
    busy = options.get("busy_timeout")
    return SqliteDatabase(
        path,
        synchronous=cast("Literal['full', 'normal']", synchronous),
        busy_timeout_ns=BUSY_TIMEOUT_NS if busy is None else parse_duration_ns("busy_timeout", busy),
        clock=clock,
        read_only=read_only,
    )


def _postgres(url: str, clock: Clock | None) -> Database:
    try:
        from holdfast.plane.db.postgres.database import POOL_MAX, POOL_TIMEOUT_NS, PostgresDatabase
    except ImportError as error:
        raise missing_driver("postgresql://", error) from error
    if not url.isascii() and url != url.encode("utf-8", "replace").decode():
        raise BadInput("url", "holds bytes that are no text", "write it in UTF-8")
    head, mark, query = url.partition("?")
    scheme, _, place = head.partition("://")
    given = parse_qsl(query, keep_blank_values=True)
    ours = _options(urlencode([pair for pair in given if pair[0] in _POSTGRES_OPTIONS]), _POSTGRES_OPTIONS)
    theirs = "&".join(pair for pair in query.split("&") if pair.partition("=")[0] not in _POSTGRES_OPTIONS)
    most, wait = ours.get("pool_max"), ours.get("pool_timeout")
    return PostgresDatabase(
        f"{scheme.lower().partition('+')[0]}://{place}{mark if theirs else ''}{theirs}",
        pool_max=POOL_MAX if most is None else _whole("pool_max", most, _POOL_MAX),
        pool_timeout_ns=POOL_TIMEOUT_NS if wait is None else parse_duration_ns("pool_timeout", wait),
        clock=clock,
    )


def _options(query: str, known: tuple[str, ...]) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise BadInput("url", f"{name!r} is not an option", f"use {' or '.join(known)}")
        if name in options:
            raise BadInput("url", f"{name!r} is given twice", "give it once")
        options[name] = value
    return options


def _whole(field: str, text: str, most: int) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(most))  # Python reads only so many
    if not digits or not 1 <= int(text) <= most:
        raise BadInput(field, f"{text!r} is out of range", f"give a whole number from 1 to {most}")
    return int(text)
