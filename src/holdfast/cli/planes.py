"""Options that the commands of the plane share, and the settings that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.plane.settings import Settings

Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings. [dim](default: $HOLDFAST_CONFIG, else holdfast.toml here if there is one)[/dim]",
        show_default=False,
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Where state is kept: sqlite:///plane.db or postgresql://… [dim](default: as the settings say)[/dim]",
        show_default=False,
    ),
]
Bus = Annotated[
    str | None,
    typer.Option("--bus", metavar="URL", help="What carries messages: nats://… [dim](default: the database)[/dim]"),
]
Leases = Annotated[
    str | None,
    typer.Option("--leases", metavar="URL", help="Where leases are kept: redis://… [dim](default: the database)[/dim]"),
]


def settings(config: str | None, **flags: object) -> Settings:
    """The settings in effect. Flags are named like their keys, with two underscores in place of the dot."""
    from holdfast.plane.setting_sources import load  # the plane is large, and other commands should not wait for it

    return load(config, flags={name.replace("__", "."): value for name, value in flags.items()})
