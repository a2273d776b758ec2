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
        "[dim]\\[default: the plane's, else $HOLDFAST_URL, else a SQLite file in your state directory][/dim]",
        show_default=False,
    ),
]
OwnUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The lease store: sqlite:///leases.db, redis://host:6379/0, … "
        "[dim]\\[default: a temporary store; $HOLDFAST_URL is not read][/dim]",
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
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="Only this tenant.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number of rows.", min=1, max=500)]
After = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="Start after this cursor (printed below a page).")
]
OwnTenant = Annotated[str, typer.Option("--tenant", metavar="T", help="The tenant.")]
OwnId = Annotated[str | None, typer.Option("--id", metavar="ID", help="The id. [dim]\\[default: generated][/dim]")]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="A label; repeatable.")]
Follow = Annotated[bool, typer.Option("--follow", help="Follow it until it finishes.")]
FollowTimeout = Annotated[float | None, duration_option("--timeout", help="Maximum time to follow.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.", show_default=False)]
