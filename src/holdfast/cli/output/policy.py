"""The error policy as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from holdfast.cli.output.screen import cell, moment, out, plain_table, put_none, put_table, seconds
from holdfast.types import NS

if TYPE_CHECKING:
    from holdfast.plane.policy.model import PlaneExercise, PolicyChange
    from holdfast.plane.service.policy import PolicyReport

_STYLES: Final = {"fail_open": "yellow", "fail_closed": "green", "wait": "cyan"}
_DUPLICATES: Final = {"step": "steps completed again", "publish": "jobs published again", "end": "second ends of jobs"}


def put_report(report: PolicyReport) -> None:
    """Print the mode of each class, current fallbacks, and the next step."""
    over = seconds(report.window_ns / NS)
    if not report.classes:
        out().print("no process of this plane has started yet, and the policy was never switched")
    else:
        table = plain_table(
            ("CLASS", "left"), ("WHEN THE STORE FAILS", "left"), ("SINCE", "left"), ("BY", "left"), ("WHY", "left"),
            ("FALLBACKS", "right"), ("PER SECOND", "right"), ("EXERCISED", "right"),
        )  # fmt: skip
        for each in report.classes:
            holds = each.standing
            table.add_row(
                cell(holds.risk, "bold"),
                cell(holds.mode, _STYLES[holds.mode]),
                _moment(holds.since_ns),
                cell(holds.actor),
                cell(holds.reason),
                cell(str(each.fallbacks), "red" if each.fallbacks else "dim"),
                cell(f"{each.rate:.3g}", "red" if each.fallbacks else "dim"),
                cell(str(each.exercised), "dim"),
            )
        put_table(table)
    console = out()
    console.print(f"every other class is fail_closed; counts are of the last {over}, in all processes", style="dim")
    if report.families:
        found = ", ".join(f"{family} {count}" for family, count in sorted(report.families.items()))
        console.print(cell(f"fallbacks by lock family: {found}"))
    doubled = {_DUPLICATES[sign]: both for sign, both in report.duplicates.items() if any(both)}
    shown = ", ".join(f"{name} {now} (the {over} before: {before})" for name, (now, before) in doubled.items())
    console.print(cell(f"duplicates: {shown or 'none'}", "red" if any(now for now, _ in doubled.values()) else ""))
    if report.jitter is not None:
        now = report.jitter
        way = "; to return to the fixed delay: holdfast policy set busy_jitter 0 --reason …" if now.seconds else ""
        line = f"busy_jitter: {now.seconds:g} s since {_moment(now.since_ns)}, by {now.actor}: {now.reason}{way}"
        console.print(cell(line), soft_wrap=True)
    for running in report.exercises:
        console.print(cell(_exercise_line(running), "cyan"))
    for hint in report.hints:
        console.print(cell(f"next: {hint}", "bold"), soft_wrap=True)
    if not report.hints:
        console.print("next: nothing; no lock falls back", style="dim")


def _exercise_line(each: PlaneExercise) -> str:
    plan = each.plan
    whom = (
        "every class"
        if plan.forced and plan.risk is None
        else f"class {plan.risk}"
        if plan.risk
        else "fail_open classes"
    )
    return (
        f"exercise: {plan.share:.4%} of {plan.family} in {whom}{' (forced)' if plan.forced else ''} "
        f"until {_moment(each.until_ns)}, by {each.actor}: {each.reason}"
    )


def put_history(found: Sequence[PolicyChange], *, full: bool) -> None:
    """Print the switches. `full`: there may be more."""
    if not found:
        out().print("the policy was never switched")
        return
    table = plain_table(
        ("WHEN", "left"), ("CLASS", "left"), ("FROM", "left"), ("TO", "left"), ("BY", "left"), ("WHY", "left"),
        ("THROUGH", "left"), ("REVISION", "right"),
    )  # fmt: skip
    for each in found:
        table.add_row(
            _moment(each.at_ns),
            cell(each.risk, "bold"),
            cell(each.before),
            cell(each.after, _STYLES.get(each.after, "")),
            cell(each.actor),
            cell(each.reason),
            cell(each.source),
            str(each.revision),
        )
    put_table(table)
    if full:
        out().print(f"(there may be more: --below {found[-1].revision})", style="dim")


def put_exercises(found: Sequence[PlaneExercise]) -> None:
    """Print the latest exercises."""
    if not found:
        put_none("exercises")
        return
    table = plain_table(
        ("FAMILY", "left"), ("SHARE", "right"), ("CLASS", "left"), ("FROM", "left"), ("UNTIL", "left"), ("BY", "left"),
        ("WHY", "left"), ("ENDED BY", "left"),
    )  # fmt: skip
    for each in found:
        table.add_row(
            cell(each.plan.family, "bold"),
            f"{each.plan.share:.4%}",
            cell(each.plan.risk or ("every" if each.plan.forced else "fail_open ones")),
            _moment(each.since_ns),
            _moment(each.until_ns),
            cell(each.actor),
            cell(each.reason),
            cell(each.ended_by or "itself"),
        )
    put_table(table)


def _moment(at_ns: int) -> str:
    return moment(datetime.fromtimestamp(at_ns / NS, UTC))
