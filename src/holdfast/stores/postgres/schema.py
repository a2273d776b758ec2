"""The tables and functions of the Postgres store: created, recognized, or refused.

Promises: creation is one transaction under an advisory lock of that transaction, so concurrent starts are safe and a
crash leaves all of it or nothing; what exists is not changed; a newer schema than ours is left alone. Other objects of
the same schema are not affected.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from holdfast.errors import Misconfigured
from holdfast.stores.postgres.connection import Row
from holdfast.stores.postgres.url import PostgresAddress

FORMAT: Final = "holdfast"
VERSION: Final = 1

_SQL = files("holdfast.stores.postgres") / "sql"
_PARTS: Final = ("lock", "schema", "fence", "queue", "acquire", "renew", "release", "sweep")


def sql(name: str, address: PostgresAddress) -> str:
    """One statement or script, as it stands in the file of that name, for the schema of this store."""
    text = (_SQL / f"{name}.sql").read_text(encoding="utf-8")
    literal = "'" + address.schema.replace("'", "''") + "'"
    return text.replace("{schema}", address.schema).replace("{text}", literal)


def statement(name: str, address: PostgresAddress) -> bytes:
    """One statement, without the comments before it."""
    lines = sql(name, address).splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")).encode()


def creation(address: PostgresAddress) -> bytes:
    """The script that creates whatever does not exist. Sent as one request, it is one transaction."""
    return "\n".join(sql(part, address) for part in _PARTS).encode()


def check_version(rows: list[Row], address: PostgresAddress) -> bool:
    """Whether the tables are there, by the rows of `version.sql`. Refuses what is foreign or newer."""
    meta = {row[0]: row[1] for row in rows}
    found = (meta.get(b"schema") or b"").decode("ascii", "replace")
    if not meta:
        return False
    if meta.get(b"format") != FORMAT.encode() or not found.isdecimal():
        raise Misconfigured(
            f"{address} has a table holdfast_meta in schema {address.schema} that is not Holdfast's; "
            "url option schema: use another one"
        )
    if int(found) > VERSION:
        raise Misconfigured(
            f"{address} has schema version {found}, made by a newer Holdfast; this one knows {VERSION}: upgrade it too"
        )
    return True
