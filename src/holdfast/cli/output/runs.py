"""Runs, timelines, workflows and approvals: dictionaries for JSON, tables for terminals.

The dictionaries have the same names as the answers of the HTTP API: durations in seconds, moments in RFC 3339.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holdfast.cli.output.jobs import as_json, at, short
from holdfast.cli.output.screen import cell, moment, plain_table, seconds
from holdfast.plane.approvals.rows import ApprovalOutline, outline_of_approval
from holdfast.plane.approvals.rules import Approval, ApprovalStatus
from holdfast.plane.workflows.core.definition import Step, StepKind
from holdfast.plane.workflows.core.definition_codec import as_document
from holdfast.plane.workflows.core.run import RunStatus, StepState, StepStatus, StoredRun
from holdfast.plane.workflows.definitions import Definition, WorkflowOutline
from holdfast.plane.workflows.run_rows import RunEvent, RunOutline, outline_of_run
from holdfast.types import NS

CHILDREN_SHOWN: Final = 8
NAME_WIDTH: Final = 14
KIND_WIDTH: Final = 9
PARTS: Final = frozenset({"engine", "delays", "reconciler"})  # components, as they appear in timelines

_STYLES: Final = {
    "pending": "dim",
    "running": "bold blue",
    "waiting": "magenta",
    "skipped": "dim",
    "succeeded": "green",
    "failed": "bold red",
    "denied": "red",
    "cancelled": "dim",
    "timed_out": "red",
    "approved": "green",
    "rejected": "red",
    "lapsed": "dim",
}
_MARKS: Final = {
    StepStatus.PENDING: "·",
    StepStatus.RUNNING: "▶",
    StepStatus.WAITING: "⏸",
    StepStatus.SKIPPED: "○",
    StepStatus.SUCCEEDED: "✔",
    StepStatus.FAILED: "✘",
    StepStatus.DENIED: "✘",
    StepStatus.CANCELLED: "■",
    StepStatus.TIMED_OUT: "⏱",
}


def run_dict(stored: StoredRun) -> dict[str, Any]:
    """One run as JSON types."""
    run = stored.run
    told = run_line(outline_of_run(stored))
    steps = {name: step_dict(state) for name, state in run.steps.items()}
    return {**told, "input": run.input, "output": run.output, "steps": steps}


def run_line(run: RunOutline) -> dict[str, Any]:
    """One run of a list as JSON types."""
    about = run.about
    return {
        "id": run.id,
        "tenant": run.tenant,
        "workflow": run.workflow,
        "workflow_version": run.workflow_version,
        "status": str(run.status),
        "risk": run.risk,
        "error": run.error,
        "steps": {name: str(status) for name, status in run.steps.items()},
        "created_at": at(run.created_ns).isoformat(),
        "updated_at": at(run.updated_ns).isoformat(),
        "ended_at": _moment(run.ended_ns),
        "deadline_at": _moment(run.deadline_ns),
        "wakes_at": _moment(run.wake_ns),
        "version": run.version,
        "fence": run.fence,
        "parent": run.parent,
        "rerun_of": about.rerun_of,
        "submitted_by": about.submitted_by,
        "idempotency_key": about.idempotency_key,
        "trace": about.trace,
        "labels": dict(about.labels),
    }


def step_dict(state: StepState) -> dict[str, Any]:
    """One step as JSON types."""
    told: dict[str, Any] = {
        "status": str(state.status),
        "attempt": state.attempt,
        "job": state.job,
        "started_at": _moment(state.started_ns),
        "ended_at": _moment(state.ended_ns),
        "due_at": _moment(state.due_ns),
        "output": state.output,
        "error": state.error,
        "code": state.code,
    }
    told["children"] = None if state.items is None else [step_dict(child) for child in state.children]
    return told


def event_dict(event: RunEvent) -> dict[str, Any]:
    """One event of a timeline as JSON types."""
    return {
        "version": event.version,
        "line": event.line,
        "at": at(event.at_ns).isoformat(),
        "step": event.step,
        "kind": event.kind,
        "detail": event.detail,
        "attempt": event.attempt,
        "fence": event.fence,
        "actor": event.actor,
    }


def definition_dict(definition: Definition) -> dict[str, Any]:
    """One workflow as JSON types."""
    return {**workflow_line(definition.outline), "definition": as_document(definition.workflow)}


def definition_lines(definition: Definition) -> list[Text]:
    """The definition of a workflow as JSON text, which `holdfast runs define` accepts."""
    text = json.dumps(as_document(definition.workflow), ensure_ascii=False, indent=2)
    return [cell(line) for line in text.split("\n")]  # JSON has line breaks nowhere else


def workflow_line(workflow: WorkflowOutline) -> dict[str, Any]:
    """One workflow of a list as JSON types."""
    return {
        "name": workflow.name,
        "version": workflow.version,
        "scope": workflow.scope,
        "description": workflow.description,
        "risk": workflow.risk,
        "steps": workflow.steps,
        "digest": workflow.digest,
        "created_at": at(workflow.created_ns).isoformat(),
        "created_by": workflow.created_by,
    }


def approval_dict(approval: Approval) -> dict[str, Any]:
    """One approval as JSON types."""
    return {**approval_line(outline_of_approval(approval)), "message": approval.message}


def approval_line(approval: ApprovalOutline) -> dict[str, Any]:
    """One approval of a list as JSON types."""
    return {
        "job": approval.job,
        "tenant": approval.tenant,
        "status": str(approval.status),
        "gate": approval.gate,
        "run": approval.run,
        "step": approval.step,
        "rule": approval.rule,
        "risk": approval.risk,
        "about": approval.about,
        "requested_by": approval.requested_by,
        "revision": approval.revision,
        "created_at": at(approval.created_ns).isoformat(),
        "expires_at": _moment(approval.expires_ns),
        "decided_by": approval.decided_by,
        "decided_at": _moment(approval.decided_ns),
        "note": approval.note,
        "fence": approval.fence,
    }


def status_cell(status: RunStatus | StepStatus | ApprovalStatus) -> Text:
    """A status in its color."""
    return cell(str(status), _STYLES[str(status)])


def run_table(runs: Sequence[RunOutline], now_ns: int) -> Table:
    """Runs, one line each."""
    table = plain_table(
        *(("ID", "left"), ("TENANT", "left"), ("WORKFLOW", "left"), ("STATUS", "left"), ("STEPS", "right")),
        *(("AGE", "right"), ("SINCE", "right"), ("ERROR", "left")),
    )
    for run in runs:
        done = sum(status.terminal for status in run.steps.values())
        table.add_row(
            cell(run.id, "bold"),
            cell(run.tenant),
            cell(f"{run.workflow} v{run.workflow_version}"),
            status_cell(run.status),
            f"{done}/{len(run.steps)}",
            seconds((now_ns - run.created_ns) / NS),
            seconds((now_ns - run.updated_ns) / NS),
            cell(short(run.error or "")),
        )
    return table


def run_tree(stored: StoredRun, now_ns: int) -> Tree:
    """A run and its steps, each with its dependencies and its state."""
    run = stored.run
    heading = Text.assemble(
        cell(f"{run.workflow.name} v{run.workflow.version} ", "bold"),
        status_cell(run.status),
        cell(f"  {run.id}", "dim"),
        cell(f"  fence {stored.fence}" if stored.fence is not None else "", "dim"),
    )
    tree = Tree(heading, guide_style="dim")
    for name, state in run.steps.items():
        branch = tree.add(step_line(name, run.workflow.steps[name], state, now_ns))
        for text in _children(name, run.workflow.steps[name], state, now_ns):
            branch.add(text)
    if run.error:
        tree.add(cell(short(run.error), "red"))
    return tree


def step_line(name: str, step: Step, state: StepState, now_ns: int) -> Text:
    """A step on one line."""
    text = cell(f"{_MARKS[state.status]} ", _STYLES[str(state.status)])
    text.append_text(cell(name, "bold"))
    text.append_text(cell(f"  {_what(step)}", "dim"))
    text.append_text(Text("  "))
    text.append_text(status_cell(state.status))
    told = _details(state, now_ns)
    if told:
        text.append_text(cell(f"  {', '.join(told)}", "dim"))
    if state.error:
        text.append_text(cell(f"  {short(state.error)}", "red" if state.status is not StepStatus.SKIPPED else "dim"))
    if state.status is StepStatus.WAITING and state.job is not None:
        text.append_text(_decide(state.job))
    if step.after and state.status is StepStatus.PENDING:
        text.append_text(cell(f"  after {', '.join(step.after)}", "dim"))
    elif state.code is not None and not state.error and state.status is StepStatus.SKIPPED:
        text.append_text(cell(f"  {state.code.replace('_', ' ')}", "dim"))
    return text


def timeline_line(event: RunEvent, *, audit: bool = True) -> Text:
    """One event of a timeline. `audit`: with fence and actor of every write, not only those of people."""
    text = cell(f"{moment(at(event.at_ns))}  ", "dim")
    text.append_text(cell(f"{event.step or 'run':<{NAME_WIDTH}} ", "bold"))
    text.append_text(cell(f"{event.kind:<{KIND_WIDTH}}", _STYLES.get(event.kind, "cyan")))
    told = [f"attempt {event.attempt}"] if event.attempt > 1 else []
    told += [f"by {event.actor}"] if event.actor and (audit or event.actor not in PARTS) else []
    told += [f"fence {event.fence}"] if audit and event.fence is not None else []
    if told:
        text.append_text(cell(f"  {', '.join(told)}", "dim"))
    if event.detail:
        text.append_text(cell(f"  {short(event.detail)}"))
    if event.step is not None and event.kind == str(StepStatus.WAITING):
        text.append_text(_decide(f"{event.run}:{event.step}@{event.attempt}"))
    text.rstrip()
    return text


def workflow_table(workflows: Sequence[WorkflowOutline]) -> Table:
    """Workflows, one line each."""
    table = plain_table(
        *(("WORKFLOW", "left"), ("VERSION", "right"), ("FOR", "left"), ("RISK", "left"), ("STEPS", "right")),
        *(("SINCE", "left"), ("BY", "left"), ("DESCRIPTION", "left")),
    )
    for each in workflows:
        table.add_row(
            cell(each.name, "bold"),
            str(each.version),
            cell("all" if each.scope == "*" else each.scope),
            cell(each.risk),
            str(each.steps),
            moment(at(each.created_ns)),
            cell(each.created_by),
            cell(short(each.description)),
        )
    return table


def approval_table(approvals: Sequence[ApprovalOutline], now_ns: int) -> Table:
    """Approvals, one line each."""
    table = plain_table(
        *(("JOB", "left"), ("TENANT", "left"), ("STATUS", "left"), ("ASKED BY", "left"), ("AGE", "right")),
        *(("LEFT", "right"), ("ABOUT", "left")),
    )
    for each in approvals:
        left = "-" if each.expires_ns is None else seconds(max(0.0, (each.expires_ns - now_ns) / NS))
        table.add_row(
            cell(each.job, "bold"),
            cell(each.tenant),
            status_cell(each.status),
            cell(each.requested_by or "?"),
            seconds((now_ns - each.created_ns) / NS),
            left if each.status is ApprovalStatus.WAITING else "-",
            cell(short(each.about or _why(each))),
        )
    return table


def approval_rows(approval: Approval) -> dict[str, Text]:
    """All available fields of one approval, by heading."""
    rows = {
        "job": cell(approval.job, "bold"),
        "status": status_cell(approval.status),
        "about": cell(message_text(approval)),
        "asked by": cell(f"{approval.requested_by or '?'} at {moment(at(approval.created_ns))}"),
        "tenant": cell(approval.tenant),
        "run": cell(f"{approval.run}, step {approval.step}" if approval.run else ""),
        "rule": cell(approval.rule),
        "expires": cell("" if approval.expires_ns is None else moment(at(approval.expires_ns))),
        "revision": cell(str(approval.revision)),
        "decided by": cell(approval.decided_by or ""),
        "decided at": cell("" if approval.decided_ns is None else moment(at(approval.decided_ns))),
        "note": cell(approval.note or ""),
        "fence": cell("" if approval.fence is None else str(approval.fence)),
    }
    return {heading: text for heading, text in rows.items() if text.plain}


def message_text(approval: Approval) -> str:
    """The message for the approver."""
    if approval.message is None or approval.message == "":
        return _why(approval)
    return approval.message if isinstance(approval.message, str) else as_json(approval.message)


def _why(approval: Approval | ApprovalOutline) -> str:
    return f"rule {approval.rule}" if approval.rule else ""


def _decide(job: str) -> Text:
    """The command for a pending approval."""
    return cell(f"  holdfast approvals show {shlex.quote(job)}", "magenta")


def _moment(ns: int | None) -> str | None:
    return None if ns is None else at(ns).isoformat()


def _what(step: Step) -> str:
    if step.kind is StepKind.JOB:
        return step.topic or ""
    return f"workflow {step.workflow}" if step.kind is StepKind.WORKFLOW else str(step.kind)


def _details(state: StepState, now_ns: int) -> list[str]:
    told = [f"attempt {state.attempt}"] if state.attempt > 1 else []
    if state.started_ns is not None and state.status in (StepStatus.RUNNING, StepStatus.WAITING):
        told.append(f"for {seconds((now_ns - state.started_ns) / NS)}")
    elif state.started_ns is not None and state.ended_ns is not None:
        told.append(f"took {seconds((state.ended_ns - state.started_ns) / NS)}")
    if state.due_ns is not None and not state.status.terminal and state.due_ns > now_ns:
        told.append(f"due in {seconds((state.due_ns - now_ns) / NS)}")
    if state.children:
        done = sum(child.status.terminal for child in state.children)
        told.append(f"{done} of {len(state.children)} items finished")
    return told


def _children(name: str, step: Step, state: StepState, now_ns: int) -> list[Text]:
    """The most relevant children: running or failed ones, up to a limit."""
    calm = (StepStatus.PENDING, StepStatus.SUCCEEDED, StepStatus.SKIPPED)
    found = [(number, child) for number, child in enumerate(state.children) if child.status not in calm]
    lines = [step_line(f"{name}[{number}]", step, child, now_ns) for number, child in found[:CHILDREN_SHOWN]]
    if len(found) > CHILDREN_SHOWN:
        lines.append(cell(f"… and {len(found) - CHILDREN_SHOWN} more", "dim"))
    return lines
