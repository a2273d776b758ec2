"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The lease store: sqlite:///leases.db, redis://host:6379/0, … "
        "[dim](default: the plane's, else $HOLDFAST_URL, else a SQLite file in your state directory)[/dim]",
        show_default=False,
    ),
]
OwnUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The lease store: sqlite:///leases.db, redis://host:6379/0, … "
        "[dim](default: a store of its own, removed at the end; $HOLDFAST_URL is not read)[/dim]",
        show_default=False,
    ),
]
TestUrl = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="The lease store. [dim]($HOLDFAST_URL is not read)[/dim]", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.", show_default=False)]
