"""`holdfast history` and `holdfast check`: the lock history of one key, and a check of all rules, from a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.exit_codes import Exit
from holdfast.cli.options import Json
from holdfast.cli.output.audit import as_dict, autopsy, ending, iso, loss_line, told, violation, when
from holdfast.cli.output.screen import cell, out, plain_table, print_note, put_json, put_table, seconds
from holdfast.cli.parse_time import WHEN, duration_option, moment_ns
from holdfast.cli.plane_options import Config, settings
from holdfast.core.history.holds import HeldAt, HoldEnd, HoldInterval, held_at, holds
from holdfast.core.history.invariants import Breach
from holdfast.errors import BadInput
from holdfast.observe.ledger.check import LedgerVerdict, check_files
from holdfast.observe.ledger.reader import Findings, Wanted, read
from holdfast.types import NS, duration_ns

_SHOWN_SKIPPED = 10
_SHOWN_VIOLATIONS = 20
_SHOWN_LOSSES = 10
_JSON_LOSSES = 1_000

LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="PATH",
        envvar="HOLDFAST_LEDGER",
        help="The directory of the audit ledger, or one of its files. [dim]\\[default: the plane's][/dim]",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("history")(history)
    app.command("check")(check_ledger)


def history(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The name of the lock.", show_default=False)],
    ledger: LedgerOption = None,
    at: Annotated[
        str | None, typer.Option(metavar=WHEN, help="Only the holder at this time, such as 14:03 or 10m.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar=WHEN, help="Only holds that ended after it: 15m, 14:03.")] = None,
    until: Annotated[str | None, typer.Option(metavar=WHEN, help="Only holds that began before it.")] = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Show the holders of a lock with their fences, and why leases were lost, from an audit ledger.

    With --at: the holder at that moment; exits 1 if there was none.
    """
    at_ns, since_ns, until_ns = (
        None if text is None else moment_ns(option, text)
        for option, text in (("--at", at), ("--since", since), ("--until", until))
    )
    findings = Findings()
    found = holds(read(ledger_path(ledger, config), Wanted(key=key), findings))
    say_findings(findings)
    if at_ns is not None:
        return _answer(key, at_ns, held_at(found, at_ns), as_json=json)
    shown = [
        hold
        for hold in found
        if (until_ns is None or hold.since_ns < until_ns)
        and (since_ns is None or hold.over_by_ns is None or hold.over_by_ns >= since_ns)
    ]
    if json:
        put_json(as_dict(hold) for hold in shown)
    elif not shown:
        out().print(cell(f"the ledger has no hold of {key}" + (" in that time" if found else "")), soft_wrap=True)
    else:
        _print(shown)
    return Exit.OK if shown else Exit.NO


def check_ledger(
    ledger: Annotated[
        Path | None,
        typer.Argument(
            metavar="LEDGER",
            help="The directory of an audit ledger, or a file. [dim]\\[default: the plane's][/dim]",
            show_default=False,
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only this lock.")] = None,
    family: Annotated[str | None, typer.Option(metavar="FAMILY", help="Only locks of this family.")] = None,
    since: Annotated[str | None, typer.Option(metavar=WHEN, help="Only records after it: 15m, 14:03.")] = None,
    until: Annotated[str | None, typer.Option(metavar=WHEN, help="Only records before it.")] = None,
    skew: Annotated[float, duration_option(help="Maximum clock difference between the hosts.")] = 0.0,
    config: Config = None,
    json: Json = False,
) -> int:
    """Check every promise: fences rise, no two owners hold a lock concurrently, no stale write was accepted.

    Exits 0 if all rules hold, and 1 if one is violated, with the two conflicting records.
    """
    skew_ns = duration_ns("skew", skew, high_ns=3600 * NS)
    wanted = Wanted(
        key,
        family,
        None if since is None else moment_ns("--since", since),
        None if until is None else moment_ns("--until", until),
    )
    verdict = check_files(ledger_path(ledger, config), None if wanted == Wanted() else wanted, skew_ns)
    say_findings(verdict.findings)
    if json:
        put_json(
            {
                "ok": not verdict.violations,
                "records": verdict.records,
                "grants": verdict.grants,
                "keys": verdict.keys,
                "files": verdict.findings.files,
                "dropped": verdict.findings.dropped,
                "skipped": verdict.findings.damaged,
                "violations": [violation(each) for each in verdict.violations],
                "lost": len(verdict.losses),
                "losses": [as_dict(each) for each in verdict.losses[-_JSON_LOSSES:]],
            }
        )
    else:
        _print_verdict(verdict)
    return Exit.NO if verdict.violations else Exit.OK


def _print_verdict(verdict: LedgerVerdict) -> None:
    violations = verdict.violations
    what = (
        f"{verdict.records:,} records, {verdict.grants:,} grants of {verdict.keys:,} keys, "
        f"{verdict.findings.files:,} files"
    )
    said, colour = "every rule holds", "green"
    if violations:
        said, colour = _times(len(violations), "rule was broken", "rules were"), "bold red"
    elif not verdict.grants:
        said, colour = "nothing to check: no grant is on record", "yellow"
    out().print(cell(f"{said} ({what})", colour), soft_wrap=True)
    for each in violations[:_SHOWN_VIOLATIONS]:
        _print_violation(each)
    if len(violations) > _SHOWN_VIOLATIONS:
        out().print(cell(f"… and {len(violations) - _SHOWN_VIOLATIONS:,} more; --json shows all", "dim"))
    _print_losses(verdict.losses)


def ledger_path(given: Path | None, config: str | None) -> Path:
    """The given ledger, else the one of the plane's settings."""
    if given is not None:
        return given
    path = settings(config).audit_path
    if path is None:
        raise BadInput("ledger", "is not given, and the plane's settings have none", "give the directory of a ledger")
    return Path(path)


def _print_losses(losses: Sequence[HoldInterval]) -> None:
    """Print lost leases: they violate no rule, but are worth knowing."""
    if not losses:
        return
    reasons = Counter(hold.loss.reason or "no reason recorded" for hold in losses if hold.loss is not None)
    shown = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    noun = "lease was" if len(losses) == 1 else "leases were"
    print()
    out().print(cell(f"{len(losses):,} {noun} lost ({shown}); holdfast history KEY explains", "bold"), soft_wrap=True)
    for hold in losses[-_SHOWN_LOSSES:]:
        out().print(cell(f"    {loss_line(hold)}"), soft_wrap=True)
    if len(losses) > _SHOWN_LOSSES:
        out().print(cell(f"… and {len(losses) - _SHOWN_LOSSES:,} before these", "dim"))


def _times(count: int, one: str, many: str) -> str:
    return f"a {one}" if count == 1 else f"{count:,} times {many} broken"


def say_findings(findings: Findings) -> None:
    """Print what is missing from a ledger, because it limits every answer."""
    for each in findings.skipped[:_SHOWN_SKIPPED]:
        print_note(str(each))
    if findings.damaged > _SHOWN_SKIPPED:
        print_note(f"… {findings.damaged:,} lines were skipped in total")
    if findings.dropped:
        print_note(f"{findings.dropped:,} records could not be written at the time; the ledger lacks them")


def _answer(key: str, at_ns: int, found: Sequence[tuple[HeldAt, HoldInterval]], *, as_json: bool) -> int:
    moment = when(at_ns, date=True)
    if as_json:
        holders = [{"held": str(held), **as_dict(hold)} for held, hold in found]
        put_json({"key": key, "at": iso(at_ns), "holders": holders})
    elif not found:
        out().print(cell(f"{key} was not held at {moment}, according to the ledger"), soft_wrap=True)
    for held, hold in () if as_json else found:
        fence = "without a fence (degraded: without the store)" if hold.fence is None else _fence(hold)
        verb = "was held" if held is HeldAt.YES else "was perhaps held"
        out().print(cell(f"{key} {verb} at {moment} by {hold.owner} {fence}, {_span(hold)}"), soft_wrap=True)
    return Exit.OK if found else Exit.NO


def _print(shown: Sequence[HoldInterval]) -> None:
    table = plain_table(("FROM", "left"), ("HELD", "right"), ("FENCE", "right"), ("OWNER", "left"), ("END", "left"))
    for hold in shown:
        lasted = "?" if hold.until_ns is None else seconds((hold.until_ns - hold.since_ns) / NS)
        fence = "none" if hold.fence is None else str(hold.fence)
        style = "" if hold.end in {HoldEnd.RELEASED, HoldEnd.PROMOTED} else "yellow"
        table.add_row(
            cell(when(hold.since_ns, date=True)), lasted, cell(fence), cell(hold.owner), cell(ending(hold), style)
        )
    put_table(table)
    for hold in shown:
        lines = autopsy(hold)
        if lines:
            print()
            out().print(cell(f"fence {hold.fence} of {hold.owner}: {ending(hold)}", "bold"), soft_wrap=True)
        for line in lines:
            out().print(cell(f"  {line}"), soft_wrap=True)


def _span(hold: HoldInterval) -> str:
    until = f"until {when(hold.until_ns)} ({ending(hold)})" if hold.until_ns is not None else f"and {ending(hold)}"
    return f"from {when(hold.since_ns)} {until}"


def _fence(hold: HoldInterval) -> str:
    return f"with fence {hold.fence}"


def _print_violation(found: Breach) -> None:
    print()
    out().print(cell(f"{found.rule}  {found.key or 'the history'}: {found.text}", "bold"), soft_wrap=True)
    for record in (found.first, found.second):
        if record is not None:
            out().print(cell(f"    {told(record)}"), soft_wrap=True)
