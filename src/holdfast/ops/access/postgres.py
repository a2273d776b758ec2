"""Roles of a Postgres database: the owner, the plane, a reader, and writers of guarded tables.

The owner creates and changes tables, and no process runs as owner. The plane's role reads and writes rows. It cannot
create, change, truncate or drop a table, nor reach another schema. The reader cannot write. A writer of guarded tables
writes their rows and the fences beside them, and cannot remove the triggers.

The text is for psql, by a superuser, in the database of the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Final

from holdfast.guards.sql.identifiers import TableNames, check_name, quoted
from holdfast.ops.access import NAME, AccessText, check_account, template

OWNER: Final = "owner"
PLANE: Final = "plane"
READER: Final = "reader"
WRITER: Final = "writer"


def postgres_access(*, schema: str = NAME, name: str = NAME) -> AccessText:
    """The roles of a plane. `schema` is the plane's own."""
    check_account(name)
    check_name("--schema", schema)
    roles = {kind: f"{name}_{kind}" for kind in (OWNER, PLANE, READER)}
    words = {kind: quoted(role) for kind, role in roles.items()} | {"schema": quoted(schema)}
    words |= {f"{kind}_text": f"'{role}'" for kind, role in roles.items()} | {"schema_text": f"'{schema}'"}
    accounts = {
        roles[OWNER]: "creates the tables of the plane and of leases, and changes them at an upgrade",
        roles[PLANE]: "used by the processes of the plane: reads and writes rows",
        roles[READER]: "reads rows, for people and reports",
    }
    makes = f"create the tables with the owner's URL: holdfast up --prepare --database postgresql://{roles[OWNER]}:…"
    more = f'give each a password: ALTER ROLE "{roles[PLANE]}" PASSWORD …; then {makes}'
    return AccessText("postgres", accounts, Template(template("roles.sql")).substitute(words), more)


def writer_access(guarded: Sequence[str], *, name: str = NAME) -> AccessText:
    """The role that writes guarded tables of applications."""
    role = f"{check_account(name)}_{WRITER}"
    words = {"writer": quoted(role), "writer_text": f"'{role}'"}
    texts = [Template(template("writer.sql")).substitute(words)]
    for table in guarded:
        names = TableNames.checked(table)
        place = {"table": names.sql, "ledger": names.ledger_sql, "home": quoted(names.schema or "public")}
        texts.append(Template(template("guarded.sql")).substitute(words | place))
    more = f'give it a password: ALTER ROLE "{role}" PASSWORD …'
    return AccessText("postgres", {role: f"writes rows of {', '.join(guarded)}"}, "".join(texts), more)
