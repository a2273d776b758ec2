"""`holdfast policy`: modes of risk classes and the jitter of busy retries, their history, and exercises.

It needs only the database of the plane, because it is used when the lease store is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from holdfast.cli.actor import actor
from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import Json
from holdfast.cli.output.policy import put_exercises, put_history, put_report
from holdfast.cli.output.screen import print_note, put_json, seconds
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Config, Database, database_named, database_settings, preparing_named
from holdfast.core.duration_text import parse_seconds
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.plane.service.policy import PolicyService

T = TypeVar("T")

EPILOG: Final = "\n\n".join(
    (
        "[bold]In an incident[/bold]",
        "[dim]$[/dim] holdfast policy show",
        '[dim]$[/dim] holdfast policy set high fail_closed --reason "duplicate runs since 02:10"',
        "[dim]$[/dim] holdfast policy history high",
        '[dim]$[/dim] holdfast policy set busy_jitter 200ms --reason "retries come in waves"',
        "fail_closed: no work without its lock. fail_open: another replica may run it too. wait: for the store.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    policy = typer.Typer(
        help="Error policy of the lease store, and jitter of busy retries.",
        epilog=EPILOG,
    )
    policy.callback(invoke_without_command=True)(print_help)
    for command in (show, set_, history, exercise):
        policy.command(command.__name__.rstrip("_"))(command)
    app.add_typer(policy, name="policy")


def show(database: Database = None, config: Config = None, json: Json = False) -> None:
    """Show the mode of each risk class, since when and by whom, and how often locks fell back recently."""
    report = _on(lambda service: service.show(), config, database, read_only=True)
    if json:
        put_json(report.as_dict())
    else:
        put_report(report)


def set_(
    risk: Annotated[
        str, typer.Argument(metavar="CLASS", help="The risk class: low, high, …; or busy_jitter.", show_default=False)
    ],
    mode: Annotated[
        str,
        typer.Argument(
            metavar="MODE",
            help="fail_open, fail_closed or wait; of busy_jitter: a time such as 200ms, or 0.",
            show_default=False,
        ),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason; kept in the history.", show_default=False)] = "",
    expect: Annotated[
        int | None, typer.Option(metavar="N", help="Switch only if the class still has this revision (show --json).")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Edit this policy file instead: for locks outside of a plane."),
    ] = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Switch a risk class or the jitter of busy retries, in all processes of the plane without a restart.

    It needs a reason, which is kept in the history.
    """
    if file is not None:
        return _edit(file, risk, mode, json=json)
    from holdfast.plane.policy.model import BUSY_JITTER, PolicyConflict, PolicySource

    if not reason.strip():
        raise BadInput("--reason", "is missing", "add a reason, which is kept in the history")

    how: dict[str, Any] = {"actor": actor(), "reason": reason, "source": PolicySource.COMMAND, "expect": expect}
    try:
        if risk == BUSY_JITTER:
            length = parse_seconds("MODE", mode)
            jitter, changed = _on(lambda service: service.set_jitter(length, **how), config, database)
            now, holds = jitter.as_dict(), f"{BUSY_JITTER} is {jitter.seconds:g} s"
        else:
            standing, changed = _on(lambda service: service.set(risk, mode, **how), config, database)
            now, holds = standing.as_dict(), f"class {risk} is {standing.mode}"
    except PolicyConflict as moved:
        print_note(str(moved))
        return Exit.NO
    if json:
        put_json({"changed": changed, **now})
    elif changed:
        print_note(f"{holds} now; processes that can reach the database follow within seconds")
    else:
        print_note(f"{holds} already, by {now['actor']}: {now['reason']}; nothing was changed")
    return Exit.OK


def history(
    risk: Annotated[
        str | None, typer.Argument(metavar="CLASS", help="Only this class, or busy_jitter.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number of rows.", min=1, max=500)] = 50,
    below: Annotated[int | None, typer.Option("--below", metavar="N", help="Only before this revision.")] = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List switches of the policy, newest first: by whom, when and why."""
    found = _on(lambda service: service.history(limit, risk, below=below), config, database, read_only=True)
    if json:
        put_json(each.as_dict() for each in found)
        return
    put_history(found, full=len(found) == limit)


def exercise(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="The lock family, such as workflow.run.", show_default=False)
    ] = None,
    share: Annotated[
        float | None,
        typer.Argument(metavar="SHARE", help="Share of acquisitions: 0.01; 0 ends it.", show_default=False),
    ] = None,
    lasts: Annotated[float, duration_option("--for", help="Duration: 90s, 10m, 2h.")] = 600.0,
    risk: Annotated[str | None, typer.Option(metavar="CLASS", help="Only this risk class.", show_default=False)] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason; kept.", show_default=False)] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Include classes that do not fail open: work will fail.")
    ] = False,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Exercise the fallback path: a share of the acquisitions of a family behaves as if the store had failed.

    Affects only fail_open risk classes, whose work continues. Ends automatically. Exercised fallbacks are counted and
    logged apart from real ones. Without arguments: lists the latest exercises.
    """
    if family is None:
        found = _on(lambda service: service.policy.exercises(), config, database, read_only=True)
        if json:
            put_json(each.as_dict() for each in found)
        else:
            put_exercises(found)
        return Exit.OK
    if share is None:
        raise BadInput("SHARE", "is missing", "give a share such as 0.01; 0 ends the exercise")
    if share == 0:
        ended = _on(lambda service: service.end_exercise(family, actor=actor()), config, database)
        if json:
            put_json({"family": family, "ended": ended})
        else:
            print_note(f"the exercise of {family} was ended" if ended else f"there is no exercise of {family}")
        return Exit.OK if ended else Exit.NO
    begun = _on(
        lambda service: service.begin_exercise(
            family, share, duration=lasts, actor=actor(), reason=reason, risk=risk, force=force
        ),
        config,
        database,
    )
    if json:
        put_json(begun.as_dict())
    else:
        whom = f"class {risk}" if risk else "the fail_open classes"
        print_note(f"{share:.4%} of {family} gets a simulated store error, in {whom}, for {seconds(lasts)}")
        print_note(f"watch it: holdfast policy show; end it: holdfast policy exercise {family} 0")
    return Exit.OK


def _on(
    work: Callable[[PolicyService], Awaitable[T]], config: str | None, database: str | None, *, read_only: bool = False
) -> T:
    from holdfast.plane.service.policy import policy_at

    chosen = database_settings(config, database)

    async def run() -> T:
        async with policy_at(chosen, read_only=read_only) as service:
            return await work(service)

    with preparing_named(config, database), database_named(chosen):
        return asyncio.run(run())


def _edit(file: Path, risk: str, mode: str, *, json: bool) -> int:
    from holdfast.plane.policy.model import BUSY_JITTER
    from holdfast.runtime.policy_switch import edit_jitter, edit_policy_file

    if risk == BUSY_JITTER:
        was, now = edit_jitter(file, parse_seconds("MODE", mode))
        name, before, after = risk, f"{was:g} s", f"{now:g} s"
    else:
        name = f"class {risk}"
        before, after = (str(each) for each in edit_policy_file(file, risk, mode))
    if json:
        put_json({"file": str(file), "risk": risk, "before": before, "after": after})
    else:
        print_note(f"{file.name}: {name} was {before} and is {after}; processes that follow the file apply it")
    return Exit.OK
