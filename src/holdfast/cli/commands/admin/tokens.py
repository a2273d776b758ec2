"""`holdfast tokens`: new tokens for the HTTP API.

Promises: the token is printed once, on stdout, and stored nowhere. The entry for the token file contains only its
digest. Does not promise that a process accepts it: the entry must be added to the file first. Clock: wall, for the time
at which a token expires.
"""

from __future__ import annotations

import json as encoder
import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from holdfast.cli.help import print_help
from holdfast.cli.options import Json
from holdfast.cli.output.screen import print_note, put_json, put_line
from holdfast.cli.parse_time import duration_option
from holdfast.types import NS, duration_ns

_BYTES: Final = 32


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    tokens = typer.Typer(help="Create tokens for the HTTP API.")
    tokens.callback(invoke_without_command=True)(print_help)
    tokens.command("create")(create)
    app.add_typer(tokens, name="tokens")


def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The owner; recorded in the history of changes.", show_default=False)
    ],
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="viewer, operator, approver or admin; repeatable. [dim]\\[default: viewer][/dim]",
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="T", help="The only tenant of the caller; *: every tenant.")] = "*",
    expires: Annotated[
        float | None, duration_option(help="Refuse the token after this time. [dim]\\[default: never][/dim]")
    ] = None,
    json: Json = False,
) -> None:
    """Create a token: print it once on stdout, and its entry for the token file on stderr. Stores nothing."""
    from holdfast.web.middleware.auth import Role, TokenEntry, check_role, digest_of

    token = secrets.token_urlsafe(_BYTES)
    until = None
    if expires is not None:
        seconds = duration_ns("expires", expires, low_ns=NS) // NS
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
    roles = tuple(check_role(each) for each in dict.fromkeys(role or [Role.VIEWER]))
    TokenEntry(name, digest_of(token), roles, tenant, until).check()
    entry: dict[str, Any] = {"name": name, "digest": digest_of(token), "roles": [str(each) for each in roles]}
    entry |= {"tenant": tenant}
    text = "\n".join(f"{field} = {encoder.dumps(value)}" for field, value in entry.items())
    if until is not None:
        entry["expires"] = until.isoformat().replace("+00:00", "Z")
        text += f"\nexpires = {entry['expires']}"
    text = f"[[tokens]]\n{text}\n"
    if json:
        put_json({"token": token, "entry": entry, "toml": text})
        return
    print(token)
    print_note("the token is above, and is not shown again; add this entry to the file in api.tokens:")
    for line in text.splitlines():
        put_line(line)
