"""`holdfast dashboard`: a dashboard for Grafana with the thresholds of your own settings."""

from __future__ import annotations

import json as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.options import Json
from holdfast.cli.output.atomic_file import write_whole
from holdfast.cli.output.screen import cell, plain_table, print_note, put_json, put_table
from holdfast.cli.plane_options import Config, settings
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.plane.settings.settings import Settings

EPILOG: Final = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast dashboard --out holdfast-dashboard.json",
        "[dim]$[/dim] holdfast dashboard --list",
        "[bold]In Grafana[/bold]",
        "Dashboards, New, Import; or put the file into a provisioning folder. See docs/dashboard.md.",
    )
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dashboard", epilog=EPILOG)(dashboard)


def dashboard(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to this file atomically.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List rows, panels and queries instead.")] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print a dashboard for Grafana: is anything wrong, and if so, where.

    Its lines (TTLs, acquire deadlines, the fallback rate) follow from your settings: generate it again after changes.
    """
    if listed and out is not None:
        raise BadInput("--list", "cannot be combined with --out", "use one of them")
    in_effect = settings(config)
    if listed:
        _list(in_effect, json=json)
    else:
        _write(in_effect, out, json=json)


def _write(in_effect: Settings, out: Path | None, *, json: bool) -> None:
    from holdfast.ops.dashboard import dashboard as made

    document = made(in_effect)
    if out is None:
        put_json(document) if json else print(_pretty(document))
        return
    write_whole("--out", out, f"{_pretty(document)}\n".encode())
    panels = sum(each["type"] != "row" for each in document["panels"])
    if json:
        put_json({"file": str(out), "uid": document["uid"], "panels": panels})
    else:
        print_note(f"{out}: {panels} panels; import it into Grafana")


def _pretty(document: dict[str, Any]) -> str:
    return to_json.dumps(document, ensure_ascii=False, indent=2)


def _list(in_effect: Settings, *, json: bool) -> None:
    from holdfast.ops.dashboard.layout import rows

    found = rows(in_effect)
    if json:
        put_json(
            {
                "row": row.title,
                "question": row.question,
                "panel": panel.title,
                "text": panel.text,
                "unit": str(panel.unit),
                "queries": [query._asdict() for query in panel.queries],
            }
            for row in found
            for panel in row.panels
        )
        return
    table = plain_table(("ROW", "left"), ("PANEL", "left"), ("SERIES", "left"), ("QUERY", "left"))
    for row in found:
        for panel in row.panels:
            for query in panel.queries:
                line = cell(query.legend or "-"), cell(query.expression, "dim")
                table.add_row(cell(row.title), cell(panel.title, "bold"), *line)
    put_table(table)
