"""`holdfast approvals`: list pending approvals and decide them. Uses the database directly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import After, Json, Limit, Tenant
from holdfast.cli.output.screen import cell, out, print_note, put_json, put_page
from holdfast.cli.plane_options import Bus, Config, Database, Leases, on_plane, read_plane

if TYPE_CHECKING:
    from holdfast.plane.approvals.rules import ApprovalVerdict
    from holdfast.plane.process.components import Components
    from holdfast.plane.service.service import Caller

JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="The job of the approval, from the list.", show_default=False)
]
Who = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Name of the approver. [dim]\\[default: user@host][/dim]")
]
Note = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Reason; stored with the decision.", show_default=False)
]
Revision = Annotated[
    int | None, typer.Option("--revision", metavar="N", help="Decide only if the approval still has this revision.")
]

_VERDICTS: Final = {"approve": "Approve: the job continues.", "reject": "Reject: the job is denied."}

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast approvals list",
        "[dim]$[/dim] holdfast approvals approve 019c2a…:ok@1 --note 'checked with billing'",
        "[dim]$[/dim] holdfast approvals list --json | jq -r '.items[].job'",
        "The requester of an approval cannot decide it.",
        "Exit codes: 0 done; 1 refused, decided otherwise, or not found; 69 a store is down; 75 busy: try again.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    approvals = typer.Typer(help="List and decide pending approvals.", epilog=EPILOG)
    approvals.callback(invoke_without_command=True)(print_help)
    approvals.command("list")(list_)
    approvals.command("show")(show)
    for verdict, effect in _VERDICTS.items():
        approvals.command(verdict, help=f"{effect} Repeating the same decision changes nothing.")(_deciding(verdict))
    app.add_typer(approvals, name="approvals")


def list_(
    tenant: Tenant = None,
    status: Annotated[
        str, typer.Option(metavar="STATUS", help="waiting, approved, rejected, lapsed, or all.")
    ] = "waiting",
    limit: Limit = 50,
    after: After = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List pending approvals, oldest first, or decided ones, newest first. Use show for the whole message."""
    from holdfast.cli.output.runs import approval_line, approval_table
    from holdfast.plane.jobs.queries import place_of

    async def work(components: Components, caller: Caller) -> Exit:
        place = None if after is None else place_of(after)
        wanted = None if status == "all" else status
        page = await components.flows.approvals(caller, tenant=tenant, status=wanted, after=place, limit=limit)
        following = None if page.after is None else page.after.text
        table = partial(approval_table, now_ns=components.clock.now().wall)
        what = "pending approvals" if status == "waiting" else "approvals"
        put_page(page.items, following, approval_line, table, what=what, json=json)
        return Exit.OK

    return read_plane(work, config, database)


def show(job: JobId, database: Database = None, config: Config = None, json: Json = False) -> int:
    """Show one approval. Exits 1 if it does not exist."""
    from holdfast.cli.output.jobs import as_json, short
    from holdfast.cli.output.runs import approval_dict, approval_rows

    async def work(components: Components, caller: Caller) -> Exit:
        found = await components.flows.approval(caller, job)
        about = await components.service.job(caller, job)
        if json:
            put_json({**approval_dict(found), "topic": about.topic, "payload": about.payload})
            return Exit.OK
        console = out()
        rows = approval_rows(found)
        if not found.gate:
            rows |= {"topic": cell(about.topic), "payload": cell(short(as_json(about.payload)))}
        for heading, text in rows.items():
            console.print(cell(f"{heading:<11}", "bold"), text, soft_wrap=True)
        return Exit.OK

    return read_plane(work, config, database)


def _deciding(verdict: str) -> Callable[..., int]:
    """The command for this decision."""

    def decide(
        job: JobId,
        note: Note = "",
        who: Who = None,
        revision: Revision = None,
        database: Database = None,
        bus: Bus = None,
        leases: Leases = None,
        config: Config = None,
        json: Json = False,
    ) -> int:
        from holdfast.plane.approvals.rules import ApprovalVerdict

        work = partial(_decide, job, ApprovalVerdict(verdict), note, revision, json)
        return on_plane(work, config, who=who, database=database, bus=bus, leases=leases)

    return decide


async def _decide(
    job: str,
    verdict: ApprovalVerdict,
    note: str,
    revision: int | None,
    json: bool,
    components: Components,
    caller: Caller,
) -> Exit:
    from holdfast.cli.output.runs import approval_dict
    from holdfast.plane.approvals.rules import ApprovalConflict, SelfApproval

    try:
        decided = await components.flows.decide(caller, job, verdict, note=note, revision=revision)
    except (ApprovalConflict, SelfApproval) as refused:
        if json:
            put_json({"taken": False, "code": str(refused.code), "error": str(refused)})
        else:
            print_note(str(refused))
        return Exit.NO
    if json:
        put_json({"taken": decided.taken, **approval_dict(decided.approval), "state": str(decided.job.state)})
    elif decided.taken:
        out().print(cell(f"{decided.approval.status} {job} (now {decided.job.state})"))
    else:
        out().print(cell(f"{job} was already {decided.approval.status} by {decided.approval.decided_by}"))
    return Exit.OK
