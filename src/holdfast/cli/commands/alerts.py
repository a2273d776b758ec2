"""`holdfast alerts`: alert rules for Prometheus, made from the locks, the settings and the error policy of a plane."""

from __future__ import annotations

import json as json_text
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import Json
from holdfast.cli.output.atomic_file import write_whole
from holdfast.cli.output.screen import cell, plain_table, print_note, put_json, put_table
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Config, settings
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.ops.alerts.plan import AlertPlan

_SHOWN = ("ALERT", "SEVERITY", "FOR", "MEANING", "NEXT", "EXPRESSION")
RULES = "holdfast-rules.yml"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("alerts")(alerts)


def alerts(
    config: Config = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write here instead of printing.")] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Print a table of the alerts, their meaning and their runbooks.")
    ] = False,
    tests: Annotated[
        bool, typer.Option("--tests", help="Print tests of the rules, for `promtool test rules`.")
    ] = False,
    rules: Annotated[
        str, typer.Option("--rules", metavar="FILE", help="With --tests: path of the rules, relative to the tests.")
    ] = RULES,
    only: Annotated[
        str | None, typer.Option("--only", metavar="PARTS", help="Components of the plane. [dim]\\[default: all][/dim]")
    ] = None,
    scrape: Annotated[float, duration_option("--scrape", help="Scrape interval of Prometheus.")] = 60.0,
    match: Annotated[
        list[str] | None, typer.Option("--match", metavar="LABEL=VALUE", help="Only series of this plane; repeatable.")
    ] = None,
    inhibit: Annotated[
        bool, typer.Option("--inhibit", help="Print inhibition rules for Alertmanager: one outage makes one page.")
    ] = False,
    runbook_url: Annotated[
        str | None,
        typer.Option("--runbook-url", metavar="URL", help="Address of your page of runbooks, for `runbook_url`."),
    ] = None,
    json: Json = False,
) -> None:
    """Print alert rules for Prometheus whose thresholds follow from your settings.

    Normal failover pages no one; `--tests` prints the proof for promtool. Each alert names its runbook.
    """
    plan = _plan(config, only, scrape, match or [], runbook_url)
    if show and (tests or inhibit or out is not None):
        raise BadInput("--list", "cannot be combined with --tests, --inhibit or --out", "omit them")
    if inhibit and tests:
        raise BadInput("--inhibit", "cannot be combined with --tests", "omit one of them")
    if show:
        _show(plan, as_json=json)
        return
    from holdfast.ops.alerts.files import inhibition_document, rules_document, yaml_text
    from holdfast.ops.alerts.scenarios import tests_document

    document: dict[str, Any] = (
        tests_document(plan, rules) if tests else inhibition_document(plan) if inhibit else rules_document(plan)
    )
    text = json_text.dumps(document, ensure_ascii=False) + "\n" if json else yaml_text(document)
    if out is None:
        print(text, end="")
        return
    write_whole("--out", out, text.encode())
    if tests:
        _write_rules(plan, out.parent / rules)
    if inhibit:
        print_note(
            f"{len(document['inhibit_rules'])} inhibition rules in {out}; add them to the configuration of Alertmanager"
        )
        return
    what = f"{len(document['tests'])} tests" if tests else _counted(document)
    command = f"promtool {'test' if tests else 'check'} rules {shlex.quote(str(out))}"
    print_note(f"{what} in {out}; {'run' if tests else 'check'} them: {command}")


def _write_rules(plan: AlertPlan, path: Path) -> None:
    """Write the rules that the tests refer to, unless the file exists: without it every test fails."""
    from holdfast.ops.alerts.files import rules_document, yaml_text

    if not path.exists():
        document = rules_document(plan)
        write_whole("--rules", path, yaml_text(document).encode())
        print_note(f"{_counted(document)} in {path}, for the tests")


def _plan(
    config: str | None, only: str | None, scrape: float, match: Sequence[str], runbook_url: str | None
) -> AlertPlan:
    from holdfast.ops.alerts.model import RUNBOOKS
    from holdfast.ops.alerts.plan import AlertPlan
    from holdfast.plane.process.plane import PARTS

    parts = PARTS if only is None else tuple(each.strip() for each in only.split(",") if each.strip())
    pairs: dict[str, str] = {}
    for each in match:
        name, sign, value = each.partition("=")
        if not sign:
            raise BadInput("match", f"{each!r:.60} is no label with a value", "use plane=blue")
        pairs[name] = value
    page = RUNBOOKS if runbook_url is None else runbook_url
    return AlertPlan(settings(config), parts, scrape, pairs, page)


def _counted(document: dict[str, Any]) -> str:
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    number = sum("alert" in rule for rule in rules)
    return f"{number} alerts and {len(rules) - number} recorded series"


def _show(plan: AlertPlan, *, as_json: bool) -> None:
    from holdfast.ops.alerts import alerts as all_of
    from holdfast.ops.alerts.model import AlertSeverity, lasting, plainly

    found = all_of(plan)
    if as_json:
        put_json(each.as_dict() for each in found)
        return
    table = plain_table(*((heading, "right" if heading == "FOR" else "left") for heading in _SHOWN))
    for each in found:
        style = "red" if each.severity is AlertSeverity.PAGE else "yellow"
        own = "".join(f" {value}" for value in each.labels.values())
        table.add_row(
            cell(each.name + own, "bold"),
            cell(str(each.severity), style),
            lasting(each.hold_s) if each.hold_s else "immediately",
            cell(plainly(each.summary)),
            cell(each.runbook.command),
            cell(each.expression, "dim"),
        )
    put_table(table)
