"""`holdfast guard install`, `check` and `remove`: tables that refuse a stale writer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import Json
from holdfast.cli.output.screen import cell, out, plain_table, print_note, put_json, put_table
from holdfast.errors import BadInput
from holdfast.guards.install import Proof, Report, Trigger, plan
from holdfast.guards.install import check as prove
from holdfast.guards.install import install as prepare
from holdfast.guards.install import remove as take_away
from holdfast.guards.install.verify import AttackVerdict
from holdfast.guards.sql.identifiers import FENCE_COLUMN

TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="The table; on Postgres also schema.table.", show_default=False)
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Database: sqlite:///app.db or postgresql://… [dim]\\[default: $HOLDFAST_GUARD_DATABASE][/dim]",
        show_default=False,
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="COLUMN", help="Key column of a row; repeatable. [dim]\\[default: id][/dim]"),
]
FenceColumn = Annotated[str, typer.Option("--fence-column", metavar="NAME", help="Name of the fence column.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the statements, in order, and change nothing.")]

_STYLES = {
    AttackVerdict.HELD: "green",
    AttackVerdict.OPEN: "yellow",
    AttackVerdict.BROKEN: "bold red",
    AttackVerdict.UNTRIED: "dim",
}


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    guard = typer.Typer(help="Make tables refuse stale writers, and verify that they do.")
    guard.callback(invoke_without_command=True)(print_help)
    guard.command("install")(install)
    guard.command("check")(check)
    guard.command("remove")(remove)
    app.add_typer(guard, name="guard")


def install(
    table: TableName,
    database: Database = None,
    id: Ids = None,
    fence_column: FenceColumn = FENCE_COLUMN,
    trigger: Annotated[
        Trigger | None,
        typer.Option(
            help="Guard against all clients: strict refuses writes without a fence, rising only lower fences; "
            "none removes the triggers. [dim]\\[default: unchanged][/dim]",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Prepare a table: fence column, fence table, and optional triggers. Running it again changes nothing."""
    act = plan if dry_run else prepare
    _show(act(database, table, id=_columns(id), fence_column=fence_column, trigger=trigger), json)


def remove(
    table: TableName,
    database: Database = None,
    fence_column: FenceColumn = FENCE_COLUMN,
    keep_ledger: Annotated[
        bool, typer.Option("--keep-ledger", help="Keep the fence table, even if it is unused.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Drop a column with another name without confirmation.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Undo install: remove triggers, fence column and stored fences. Running it again changes nothing."""
    if fence_column != FENCE_COLUMN and not yes and not dry_run:
        _ask(table, fence_column)
    _show(take_away(database, table, fence_column=fence_column, keep_ledger=keep_ledger, dry_run=dry_run), json)


def check(
    table: TableName,
    database: Database = None,
    id: Ids = None,
    fence_column: FenceColumn = FENCE_COLUMN,
    expect: Annotated[
        Trigger | None, typer.Option(help="Fail unless at least this mode is installed.", show_default=False)
    ] = None,
    json: Json = False,
) -> int:
    """Try to break the guard of a table, and undo everything. Exits 1 if a promise does not hold."""
    proof = prove(database, table, id=_columns(id), fence_column=fence_column, expect=expect)
    if json:
        put_json(proof.as_dict())
    else:
        _print(proof)
    return Exit.OK if proof.held else Exit.NO


def _columns(id: list[str] | None) -> str | tuple[str, ...]:
    return tuple(id) if id else "id"


def _ask(table: str, column: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput("--yes", "is missing, and there is no terminal for confirmation", f"add --yes to drop {column}")
    print_note(f"the column {column} of {table} and its content will be dropped")
    typer.confirm("Drop it?", abort=True, err=True)


def _show(report: Report, json: bool) -> None:
    if json:
        put_json(report.as_dict())
        return
    for note in report.notes:
        print_note(f"note: {note}")
    if not report.steps:
        out().print(cell(f"nothing to do: {report.table} is up to date"))
        return
    if not report.done:
        for step in report.steps:
            print(f"-- {step.what}\n{step.sql};\n")
        return
    for step in report.steps:
        out().print(cell(f"  {step.what}"))
    out().print(cell(f"done: {report.table}, trigger {report.trigger}", "bold green"))


def _print(proof: Proof) -> None:
    if proof.attempts:
        put_table(_table(proof))
        print()
    for problem in proof.problems:
        out().print(cell(f"problem: {problem}", "bold red"))
    if untried := proof.count(AttackVerdict.UNTRIED):
        out().print(cell(f"{untried} could not be tried here", "dim"))
    if proof.held:
        out().print(cell(f"holds: {proof.table}, for {proof.held_to_it}", "bold green"))
    else:
        broken = proof.count(AttackVerdict.BROKEN)
        out().print(cell(f"does not hold: {proof.table}, {broken} of {len(proof.attempts)} got through", "bold red"))


def _table(proof: Proof) -> Table:
    result = plain_table(("TRIED", "left"), ("VERDICT", "left"), ("WHAT HAPPENED", "left"))
    for each in proof.attempts:
        result.add_row(cell(each.what), cell(each.verdict.value, _STYLES[each.verdict]), cell(each.happened))
    return result
