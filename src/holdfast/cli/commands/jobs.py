"""`holdfast jobs`: submit, list, show, follow, cancel, retry; dead letters and counts. Uses the database directly."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import After, Follow, FollowTimeout, Json, Labels, Limit, OwnId, OwnTenant, Tenant
from holdfast.cli.output.screen import cell, out, plain_table, print_note, put_json, put_page, put_table
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Bus, Config, Database, Leases, on_plane, read_plane
from holdfast.core.strict_parsers import NotJson, json_of
from holdfast.errors import BadInput
from holdfast.types import duration_ns

if TYPE_CHECKING:
    from holdfast.plane.process.components import Components
    from holdfast.plane.service.selection import BulkFilter, BulkItem
    from holdfast.plane.service.service import Caller

JobId = Annotated[str, typer.Argument(metavar="ID", help="The id of the job.", show_default=False)]
SomeJobId = Annotated[
    str | None, typer.Argument(metavar="ID", help="The id of the job; or give a filter.", show_default=False)
]
StateFilter = Annotated[str | None, typer.Option("--state", metavar="STATE", help="Only in this state.")]
TopicFilter = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only of this topic.")]
CodeFilter = Annotated[
    str | None,
    typer.Option("--code", metavar="CODE", help="Only dead letters with this code, as dead-letters shows it."),
]
OlderThan = Annotated[
    float | None,
    duration_option("--older-than", help="Only jobs created, or dead letters stored, longer ago than this."),
]
BulkLimit = Annotated[
    int, typer.Option("--limit", metavar="N", help="With a filter: maximum number of jobs.", min=1, max=100_000)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With a filter: show what matches, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="With a filter: do not ask for confirmation.")]

BULK: Final = 10_000

_STDIN: Final = "-"
_READ_MAX: Final = 4_000_000
_PAYLOAD: Final = "give JSON, @FILE, or - for standard input; text needs quotes: '\"text\"'"

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast jobs submit invoice.charge --payload '{\"invoice\": 42}' --follow",
        "[dim]$[/dim] holdfast jobs list --state failed --tenant acme",
        "[dim]$[/dim] holdfast jobs cancel --state pending --topic report.make --older-than 1h --dry-run",
        "[dim]$[/dim] holdfast jobs retry --topic invoice.charge --yes",
        "Exit codes of follow: 0 it succeeded, 1 it failed or was cancelled, 124 it did not finish in time.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    jobs = typer.Typer(help="Submit and manage jobs.", epilog=EPILOG)
    jobs.callback(invoke_without_command=True)(print_help)
    for command in (submit, list_, show, follow, cancel, retry, stats):
        jobs.command(command.__name__.rstrip("_"))(command)
    jobs.command("dead-letters")(dead_letters)
    jobs.command("dead", hidden=True)(dead_letters)
    app.add_typer(jobs, name="jobs")


def submit(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the job.", show_default=False)],
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="Payload: JSON, @FILE, or - for standard input.")
    ] = None,
    tenant: OwnTenant = "default",
    priority: Annotated[int, typer.Option(metavar="N", help="Priority, -100 to 100; higher runs first.")] = 0,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Return the existing job with this key of the tenant, if any.")
    ] = None,
    id: OwnId = None,
    pool: Annotated[
        str | None,
        typer.Option(metavar="P", help="Run only in this pool. [dim]\\[default: any pool with the topic][/dim]"),
    ] = None,
    deadline: Annotated[float | None, duration_option(help="Time limit for the whole job.")] = None,
    delay: Annotated[float, duration_option(help="Minimum delay before the first attempt.")] = 0.0,
    timeout: Annotated[float | None, duration_option(help="Time limit of one attempt.")] = None,
    max_attempts: Annotated[int, typer.Option(metavar="N", help="Maximum number of attempts, 1 to 50.")] = 3,
    label: Labels = None,
    follow: Follow = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Submit a job. It is stored when this returns; the same idempotency key returns the same job."""
    from holdfast.cli.output.follow_job import follow as watch
    from holdfast.cli.output.jobs import job_dict
    from holdfast.plane.model.records import Submission

    told = payload_of(payload)
    labels = labels_of(label or [])

    async def work(components: Components, caller: Caller) -> Exit:
        now_ns = components.clock.now().wall
        wanted = Submission(
            topic=topic,
            payload=told,
            tenant=tenant,
            id=id,
            idempotency_key=idempotency_key,
            priority=priority,
            max_attempts=max_attempts,
            timeout_ns=None if timeout is None else duration_ns("timeout", timeout, low_ns=1),
            deadline_ns=None if deadline is None else now_ns + duration_ns("deadline", deadline),
            not_before_ns=now_ns + duration_ns("delay", delay) if delay else 0,
            submitted_by=caller.name,
            labels=labels,
        )
        job, made = await components.service.submit(caller, wanted, pool=pool)
        warning = await components.service.warning(caller, job)
        if warning is not None:
            print_note(f"warning: {warning.text}; the job waits for one")
        if json and not follow:
            put_json({"made": made, "job": job_dict(job, waiting=warning)})
        elif not json:
            print_note(f"{'submitted' if made else 'existed already'}: {topic} of {tenant}, {job.state}")
            out().print(cell(job.id, "bold"))  # alone on stdout, for scripts
        return await watch(components, caller, job.id, timeout=None, json=json) if follow else Exit.OK

    return on_plane(work, config, makes=True, database=database, bus=bus, leases=leases)


def list_(
    tenant: Tenant = None,
    state: StateFilter = None,
    topic: TopicFilter = None,
    limit: Limit = 50,
    after: After = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List jobs, newest first. Use show for payload and result."""
    from holdfast.cli.output.jobs import job_table, outline_dict
    from holdfast.plane.jobs.queries import place_of
    from holdfast.plane.model.paging import AFTER_ALL

    async def work(components: Components, caller: Caller) -> Exit:
        place = AFTER_ALL if after is None else place_of(after)
        page = await components.service.jobs(caller, tenant=tenant, state=state, topic=topic, after=place, limit=limit)
        following = None if page.after is None else page.after.text
        table = partial(job_table, now_ns=components.clock.now().wall)
        put_page(page.items, following, outline_dict, table, what="jobs", json=json)
        return Exit.OK

    return read_plane(work, config, database)


def show(job: JobId, database: Database = None, config: Config = None, json: Json = False) -> int:
    """Show a job and its history. Exits 1 if it does not exist."""
    from holdfast.cli.output.jobs import child_dict, child_line, event_dict, event_line, job_dict, job_rows, trace_lines

    async def work(components: Components, caller: Caller) -> Exit:
        found = await components.service.job(caller, job)
        progress = await components.service.progress(found)
        events = await components.service.events(caller, job)
        waiting = await components.service.waiting(caller, found)
        children = await components.service.children(found)
        if json:
            family = {"children": [child_dict(each) for each in children]}
            shown = {**job_dict(found, progress, waiting), **family}
            put_json({"job": shown, "events": [event_dict(each) for each in events]})
            return Exit.OK
        console = out()
        for heading, text in job_rows(found, progress, waiting).items():
            console.print(cell(f"{heading:<11}", "bold"), text, soft_wrap=True)
        for child in children:
            console.print(child_line(child), soft_wrap=True)
        console.print()
        for event in events:
            console.print(event_line(event), soft_wrap=True)
        for line in trace_lines(events):
            console.print(line, soft_wrap=True)
        return Exit.OK

    return read_plane(work, config, database)


def follow(
    job: JobId,
    timeout: FollowTimeout = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Follow a job until it finishes. Exits 0 if it succeeded, 1 if not, 124 if it did not finish in time."""
    from holdfast.cli.output.follow_job import follow as watch

    if timeout is not None:
        duration_ns("timeout", timeout)

    async def work(components: Components, caller: Caller) -> Exit:
        return await watch(components, caller, job, timeout=timeout, json=json)

    return read_plane(work, config, database)


def cancel(
    job: SomeJobId = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason; stored with the job.")] = "cancelled on request",
    tenant: Tenant = None,
    state: StateFilter = None,
    topic: TopicFilter = None,
    older_than: OlderThan = None,
    limit: BulkLimit = BULK,
    dry_run: DryRun = False,
    yes: Yes = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Request the cancellation of a job, or of all that match. Schedulers carry it out. Exits 1 if it has finished."""
    from holdfast.cli.output.bulk import change_all
    from holdfast.cli.output.jobs import job_dict
    from holdfast.plane.service.selection import unfinished_jobs

    _check_choice(job, tenant, state, topic, older_than)

    async def one(components: Components, caller: Caller) -> Exit:
        found, asked = await components.service.cancel(caller, job or "", reason=reason)
        if json:
            put_json({"asked": asked, "job": job_dict(found)})
        elif asked:
            out().print(cell(f"cancellation requested for {found.id} ({found.state})"))
        else:
            out().print(cell(f"{found.id} has already finished: {found.state}"))
        return Exit.OK if asked else Exit.NO

    async def many(components: Components, caller: Caller) -> Exit:
        wanted = _filter(components, older_than, tenant=tenant, state=state, topic=topic)
        found = await unfinished_jobs(components.service, caller, wanted, limit=limit)

        async def change(each: BulkItem) -> bool:
            return (await components.service.cancel(caller, each.id, reason=reason))[1]

        words = {"what": "unfinished jobs", "ask": "Cancel them?", "done": "cancellation requested"}
        return await change_all(
            found, change, **words, unchanged="have finished meanwhile", yes=yes, dry=dry_run, json=json
        )

    return on_plane(many if job is None else one, config, database=database, bus=bus, leases=leases)


def retry(
    job: SomeJobId = None,
    tenant: Tenant = None,
    code: CodeFilter = None,
    topic: TopicFilter = None,
    older_than: OlderThan = None,
    limit: BulkLimit = BULK,
    dry_run: DryRun = False,
    yes: Yes = False,
    database: Database = None,
    bus: Bus = None,
    leases: Leases = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Retry a dead letter, or all that match, as new jobs with all attempts. A second call returns the same job."""
    from holdfast.cli.output.bulk import change_all
    from holdfast.cli.output.jobs import job_dict
    from holdfast.plane.model.caller import Caller as AnyCaller
    from holdfast.plane.service.selection import untried_letters

    _check_choice(job, tenant, code, topic, older_than)

    async def one(components: Components, caller: Caller) -> Exit:
        found, made = await components.service.retry_dead_letter(caller, job or "")
        if json:
            put_json({"made": made, "job": job_dict(found)})
        else:
            print_note(f"{'submitted a new job' if made else 'was retried before'}; its state is {found.state}")
            out().print(cell(found.id, "bold"))
        return Exit.OK

    async def many(components: Components, caller: Caller) -> Exit:
        wanted = _filter(components, older_than, tenant=tenant, code=code, topic=topic)
        found = await untried_letters(components.service, caller, wanted, limit=limit)

        async def change(each: BulkItem) -> bool:  # tenants may use the same ids
            return (await components.service.retry_dead_letter(AnyCaller(caller.name, each.tenant), each.id))[1]

        words = {"what": "dead letters", "ask": "Retry them?", "done": "submitted again"}
        return await change_all(
            found, change, **words, unchanged="were retried meanwhile", yes=yes, dry=dry_run, json=json
        )

    return on_plane(many if job is None else one, config, database=database, bus=bus, leases=leases)


def _check_choice(job: str | None, *conditions: object) -> None:
    given = any(each is not None for each in conditions)
    if job is None and not given:
        raise BadInput("ID", "is missing", "give an id, or a filter such as --topic or --older-than")
    if job is not None and given:
        raise BadInput("ID", f"{job[:60]!r} is given together with a filter", "give one of them")


def _filter(components: Components, older_than: float | None, **conditions: str | None) -> BulkFilter:
    from holdfast.plane.service.selection import BulkFilter

    age_ns = None if older_than is None else duration_ns("older-than", older_than)
    return BulkFilter(**conditions, before_ns=None if age_ns is None else components.clock.now().wall - age_ns)


def dead_letters(
    letter: Annotated[
        str | None, typer.Argument(metavar="ID", help="Show only this one, with its body.", show_default=False)
    ] = None,
    tenant: Tenant = None,
    limit: Limit = 50,
    after: After = None,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List dead letters, newest first: messages without an automatic retry. With an id: that one and its body."""
    from holdfast.cli.output.jobs import as_json, letter_dict, letter_table
    from holdfast.plane.jobs.queries import place_of
    from holdfast.plane.model.paging import AFTER_ALL

    async def work(components: Components, caller: Caller) -> Exit:
        if letter is not None:
            one = await components.service.dead_letter(caller, letter)
            if json:
                put_json({**letter_dict(one), "body": dict(one.body)})
            else:
                put_table(letter_table([one]))
                out().print(cell(as_json(dict(one.body))), soft_wrap=True)
            return Exit.OK
        place = AFTER_ALL if after is None else place_of(after)
        page = await components.service.dead_letters(caller, tenant=tenant, after=place, limit=limit)
        following = None if page.after is None else page.after.text
        put_page(page.items, following, letter_dict, letter_table, what="dead letters", json=json)
        return Exit.OK

    return read_plane(work, config, database)


def stats(tenant: Tenant = None, database: Database = None, config: Config = None, json: Json = False) -> int:
    """Count jobs by state, and live workers."""
    from holdfast.cli.output.jobs import state_cell

    async def work(components: Components, caller: Caller) -> Exit:
        counts = await components.service.counts(caller, tenant=tenant)
        workers = [each for each in await components.service.workers() if each.alive]
        active, capacity = (
            sum(each.heartbeat.active for each in workers),
            sum(each.heartbeat.capacity for each in workers),
        )
        if json:
            told = {"workers": len(workers), "active": active, "capacity": capacity}
            put_json({"jobs": {str(state): count for state, count in counts.items()}, **told})
            return Exit.OK
        table = plain_table(("STATE", "left"), ("JOBS", "right"))
        for state, count in counts.items():
            table.add_row(state_cell(state), cell(str(count), "bold" if count else "dim"))
        put_table(table)
        out().print(cell(f"{len(workers)} workers are alive, with {active} of {capacity} slots in use", "dim"))
        return Exit.OK

    return read_plane(work, config, database)


# Shared helpers.


def payload_of(text: str | None, field: str = "payload") -> Any:
    """The parsed payload, or `BadInput`."""
    if text is None:
        return None
    source = text
    try:
        if text == _STDIN:
            source = sys.stdin.read(_READ_MAX + 1)
        elif text.startswith("@"):
            with Path(text[1:]).open(encoding="utf-8") as file:
                source = file.read(_READ_MAX + 1)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadInput(field, f"{text[:80]!r} cannot be read: {reason}", _PAYLOAD) from None
    if len(source) > _READ_MAX:
        raise BadInput(field, "is too long", "store it elsewhere and pass a pointer")
    try:
        return json_of(source)
    except NotJson as error:
        named = f"{field}.{error.field[:80]}" if error.field else field
        raise BadInput(named, error.problem, error.fix) from None


def labels_of(given: list[str]) -> dict[str, str]:
    """`NAME=TEXT`, or `BadInput`."""
    labels: dict[str, str] = {}
    for each in given:
        name, mark, text = each.partition("=")
        if not mark or not name or name in labels:
            raise BadInput("label", f"{each[:60]!r} is not a new NAME=TEXT", "give each name once, with its text")
        labels[name] = text
    return labels
