"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.parse_time import duration_option

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
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="Only of this tenant.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="At most so many.", min=1, max=500)]
After = Annotated[str | None, typer.Option("--after", metavar="PLACE", help="The next page: what the last one said.")]
OwnTenant = Annotated[str, typer.Option("--tenant", metavar="T", help="Whose it is.")]
OwnId = Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id. [dim](default: made up)[/dim]")]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="A note; may be repeated.")]
Follow = Annotated[bool, typer.Option("--follow", help="Watch it until it is over.")]
FollowTimeout = Annotated[float | None, duration_option("--timeout", help="Look for so long at most.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.", show_default=False)]
