"""The help of all commands in one style: panels by audience, flags without a type, groups that print their help.

Promises: every group without a subcommand prints its help and exits 0. A flag shows no type. Commands stand in
the panel and order of the table. Does not promise more than the help: no command behaves differently. Clock: none.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import typer
from typer.main import get_command

HELP: Final = ("-h", "--help")


def command_of(app: typer.Typer, panels: Mapping[str, Mapping[str, str]]) -> Any:
    """The root command of the application, with the help in one style."""
    root: Any = get_command(app)
    panel_of = {name: panel for panel, names in panels.items() for name in names}
    commands: MutableMapping[str, Any] = root.commands
    known = [name for name in panel_of if name in commands]
    root.commands = {name: commands[name] for name in [*known, *(name for name in commands if name not in panel_of)]}
    for name in known:
        commands[name].rich_help_panel = panel_of[name]
    _plain(root)
    return root


def print_help(context: typer.Context) -> None:
    """Print the help of a group that was called without a subcommand. For `typer.Typer.callback`."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _plain(command: Any) -> None:
    context = typer.Context(command, help_option_names=list(HELP))
    for each in (*command.params, command.get_help_option(context)):
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""  # a flag has no value, so `<bool>` would only confuse
    for each in getattr(command, "commands", {}).values():
        _plain(each)
