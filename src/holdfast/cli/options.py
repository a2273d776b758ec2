"""Options that several commands share, and the store that they name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import holdfast
from holdfast.blocking.locks import Locks

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store: sqlite:///leases.db, redis://host:6379/0, … "
        "[dim](default: $HOLDFAST_URL, else a SQLite file in your state directory)[/dim]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.", show_default=False)]


def url_of(context: typer.Context, url: str | None) -> str | None:
    """The URL given to the command itself, else the one given to `holdfast`."""
    root: str | None = context.obj
    return root if url is None else url


def connect(context: typer.Context, url: str | None, **options: Any) -> Locks:
    """Open the locks of the store that the user named."""
    return holdfast.connect(url_of(context, url), **options)
