"""`holdfast workers`: the workers of a plane. Uses the database directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.help import print_help
from holdfast.cli.options import Json
from holdfast.cli.output.screen import cell, plain_table, print_note, put_page, seconds
from holdfast.cli.plane_options import Config, Database, read_plane
from holdfast.types import NS, check_label

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.plane.process.components import Components
    from holdfast.plane.service.service import Caller, WorkerStatus


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    workers = typer.Typer(help="List workers.")
    workers.callback(invoke_without_command=True)(print_help)
    workers.command("list")(list_)
    app.add_typer(workers, name="workers")


def list_(
    pool: Annotated[str | None, typer.Option(metavar="P", help="Only workers of this pool.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only workers that serve this topic.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Include workers without a recent heartbeat.")] = False,
    database: Database = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """List live workers by name: pool, slots in use, last heartbeat, host and topics."""
    for name, value in (("pool", pool), ("topic", topic)):
        if value is not None:
            check_label(name, value)

    async def work(components: Components, _caller: Caller) -> Exit:
        known = [
            each
            for each in await components.service.workers()
            if pool in (None, each.heartbeat.pool) and (topic is None or topic in each.heartbeat.topics)
        ]
        shown = [each for each in known if each.alive or all]
        now_ns = components.clock.now().wall
        put_page(shown, None, _worker_dict, lambda items: _worker_table(items, now_ns), what="workers", json=json)
        if len(shown) < len(known) and not json:
            print_note(f"{len(known) - len(shown)} more without a recent heartbeat: --all")
        return Exit.OK

    return read_plane(work, config, database)


def _state(worker: WorkerStatus) -> str:
    if not worker.alive:
        return "silent"
    return "draining" if worker.heartbeat.draining else "alive"


def _worker_table(workers: Sequence[WorkerStatus], now_ns: int) -> Table:
    table = plain_table(
        *(("WORKER", "left"), ("POOL", "left"), ("STATE", "left"), ("SLOTS USED", "right"), ("HEARTBEAT", "right")),
        *(("HOST", "left"), ("PID", "right"), ("TOPICS", "left")),
    )
    styles = {"alive": "green", "draining": "yellow", "silent": "red"}
    for each in workers:
        beat, state = each.heartbeat, _state(each)
        table.add_row(
            cell(beat.worker, "bold"),
            cell(beat.pool),
            cell(state, styles[state]),
            f"{beat.active}/{beat.capacity}",
            f"{seconds(max(0, now_ns - beat.at_ns) / NS)} ago",
            cell(beat.host),
            str(beat.pid),
            cell(", ".join(beat.topics)),
        )
    return table


def _worker_dict(worker: WorkerStatus) -> dict[str, Any]:
    from holdfast.cli.output.jobs import at

    beat = worker.heartbeat
    return {
        "worker": beat.worker,
        "pool": beat.pool,
        "topics": list(beat.topics),
        "capacity": beat.capacity,
        "active": beat.active,
        "draining": beat.draining,
        "alive": worker.alive,
        "heard_at": at(beat.at_ns).isoformat(),
        "host": beat.host,
        "pid": beat.pid,
    }
