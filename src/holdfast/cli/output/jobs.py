"""Jobs, their history and dead letters: dictionaries for JSON, tables for terminals.

The dictionaries have the same names as the answers of the HTTP API: durations in seconds, moments in RFC 3339.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from holdfast.cli.output.screen import cell, moment, plain_table, seconds
from holdfast.plane.jobs.children import ChildLink
from holdfast.plane.jobs.progress import Progress
from holdfast.plane.jobs.summaries import JobOutline, LetterOutline
from holdfast.plane.jobs.timeline import EmittedValue
from holdfast.plane.jobs.waiting_reason import WaitReason
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import PARENT_LABEL, attempt_text
from holdfast.plane.model.records import DeadLetter, Job, JobEvent
from holdfast.types import NS

_STYLES: Final = {
    JobState.PENDING: "cyan",
    JobState.APPROVAL_REQUIRED: "magenta",
    JobState.SCHEDULED: "blue",
    JobState.DISPATCHED: "blue",
    JobState.RUNNING: "bold blue",
    JobState.RETRYING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "bold red",
    JobState.TIMEOUT: "red",
    JobState.DENIED: "red",
    JobState.OUTPUT_QUARANTINED: "red",
    JobState.CANCELLED: "dim",
}
_TEXT_MAX: Final = 200


def at(ns: int) -> datetime:
    """A moment of the wall clock."""
    return datetime.fromtimestamp(ns / NS, UTC)


def job_dict(job: Job, progress: Progress | None = None, waiting: WaitReason | None = None) -> dict[str, Any]:
    """One job as JSON types."""
    shown = None if progress is None else progress_dict(progress)
    why = None if waiting is None else {"code": str(waiting.code), "text": waiting.text}
    return {
        **outline_dict(job),
        "payload": job.payload,
        "result": job.result,
        "progress": shown,
        "waiting": why,
        "parent": job.labels.get(PARENT_LABEL),
    }


def child_dict(child: ChildLink) -> dict[str, Any]:
    """A child of a job as JSON types."""
    return {"id": child.id, "state": str(child.state), "detached": child.detached}


def child_line(child: ChildLink) -> Text:
    """A child of a job as a line."""
    line = Text.assemble(cell("child       ", "bold"), state_cell(child.state), cell(f"  {child.id}"))
    return line.append_text(cell("  detached" if child.detached else "", "dim"))


def progress_dict(progress: Progress) -> dict[str, Any]:
    """The last progress report of a job as JSON types."""
    return {
        "attempt": progress.attempt,
        "at": at(progress.at_ns).isoformat(),
        "fraction": progress.fraction,
        "note": progress.note,
    }


def outline_dict(job: Job | JobOutline) -> dict[str, Any]:
    """One job of a list as JSON types."""
    return {
        "id": job.id,
        "tenant": job.tenant,
        "topic": job.topic,
        "pool": job.pool,
        "state": str(job.state),
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "reason": job.reason,
        "code": job.code,
        "worker": job.worker,
        "fence": job.fence,
        "run_fence": job.run_fence,
        "version": job.version,
        "idempotency_key": job.idempotency_key,
        "timeout": None if job.timeout_ns is None else job.timeout_ns / NS,
        "created_at": at(job.created_ns).isoformat(),
        "updated_at": at(job.updated_ns).isoformat(),
        "deadline_at": None if job.deadline_ns is None else at(job.deadline_ns).isoformat(),
        "not_before": at(job.not_before_ns).isoformat() if job.not_before_ns > 0 else None,
        "submitted_by": job.submitted_by,
        "trace": job.trace,
        "labels": dict(job.labels),
    }


def event_dict(event: JobEvent) -> dict[str, Any]:
    """One event of the history as JSON types."""
    return {
        "version": event.version,
        "at": at(event.at_ns).isoformat(),
        "before": None if event.before is None else str(event.before),
        "after": str(event.after),
        "attempt": event.attempt,
        "fence": event.fence,
        "actor": event.actor,
        "reason": event.reason,
        "traceback": event.traceback,
    }


def value_dict(emitted: EmittedValue) -> dict[str, Any]:
    """A value that a job function emitted, as JSON types."""
    return {
        "attempt": emitted.attempt,
        "number": emitted.number,
        "at": at(emitted.at_ns).isoformat(),
        "value": emitted.value,
    }


def letter_dict(letter: DeadLetter | LetterOutline) -> dict[str, Any]:
    """One dead letter of a list as JSON types."""
    return {
        "id": letter.id,
        "job": letter.job,
        "tenant": letter.tenant,
        "topic": letter.topic,
        "reason": letter.reason,
        "code": letter.code,
        "last_state": None if letter.last_state is None else str(letter.last_state),
        "attempts": letter.attempts,
        "at": at(letter.at_ns).isoformat(),
        "retried_as": letter.retried_as,
    }


def state_cell(state: JobState) -> Text:
    """A state in its color."""
    return cell(str(state), _STYLES[state])


def job_table(jobs: Sequence[JobOutline], now_ns: int) -> Table:
    """Jobs, one line each."""
    table = plain_table(
        *(("ID", "left"), ("TENANT", "left"), ("TOPIC", "left"), ("STATE", "left"), ("PRIORITY", "right")),
        *(("ATTEMPT", "right"), ("AGE", "right"), ("SINCE", "right"), ("WORKER", "left"), ("REASON", "left")),
    )
    for job in jobs:
        table.add_row(
            cell(job.id, "bold"),
            cell(job.tenant),
            cell(job.topic),
            state_cell(job.state),
            str(job.priority),
            attempt_text(job.id, job.labels, job.attempt, job.max_attempts, "/"),
            seconds((now_ns - job.created_ns) / NS),
            seconds((now_ns - job.updated_ns) / NS),
            cell(job.worker or "-", "" if job.worker else "dim"),
            cell(short(job.reason or "")),
        )
    return table


def progress_text(progress: Progress) -> str:
    """The last progress report of a job, on one line."""
    share = [] if progress.fraction is None else [f"{progress.fraction:.0%}"]
    return ", ".join([*share, *([progress.note] if progress.note else [])]) or "working"


def job_rows(job: Job, progress: Progress | None = None, waiting: WaitReason | None = None) -> dict[str, Text]:
    """All available fields of one job, by heading."""
    reported = ""
    if progress is not None:
        reported = f"{progress_text(progress)} (attempt {progress.attempt}, {moment(at(progress.at_ns))})"
    rows = {
        "id": cell(job.id, "bold"),
        "state": state_cell(job.state),
        "waiting": cell("" if waiting is None else f"{waiting.text} ({waiting.code})"),
        "tenant": cell(job.tenant),
        "topic": cell(f"{job.topic}, in pool {job.pool}"),
        "priority": cell(str(job.priority)),
        "attempt": cell(attempt_text(job.id, job.labels, job.attempt, job.max_attempts)),
        "worker": cell(job.worker or ""),
        "progress": cell(reported),
        "fences": cell(_fences(job)),
        "submitted": cell(f"{moment(at(job.created_ns))} by {job.submitted_by or '?'}"),
        "changed": cell(moment(at(job.updated_ns))),
        "not before": cell(moment(at(job.not_before_ns)) if job.not_before_ns > 0 else ""),
        "deadline": cell("" if job.deadline_ns is None else moment(at(job.deadline_ns))),
        "timeout": cell("" if job.timeout_ns is None else seconds(job.timeout_ns / NS)),
        "key": cell(job.idempotency_key or ""),
        "parent": cell(job.labels.get(PARENT_LABEL, "")),
        "labels": cell(", ".join(f"{name}={value}" for name, value in job.labels.items())),
        "payload": cell("" if job.payload is None else short(as_json(job.payload))),
        "result": cell("" if job.result is None else short(as_json(job.result)), "green"),
        "reason": cell(job.reason or ""),
        "code": cell(job.code or ""),
    }
    return {heading: text for heading, text in rows.items() if text.plain}


def event_line(event: JobEvent) -> Text:
    """One event of the history as a line."""
    text = cell(f"{moment(at(event.at_ns))}  ", "dim")
    text.append_text(state_cell(event.after))
    told = [f"attempt {event.attempt}"] if event.attempt else []
    told += [f"fence {event.fence}"] if event.fence is not None else []
    told += [f"by {event.actor}"] if event.actor else []
    text.append_text(cell(f"  {', '.join(told)}", "dim"))
    if event.reason:
        text.append_text(cell(f"  {short(event.reason)}"))
    return text


def trace_lines(events: Sequence[JobEvent]) -> list[Text]:
    """The end of the traceback of the last attempt that raised an error; with all of them in JSON."""
    failed = [event for event in events if event.traceback is not None]
    if not failed:
        return []
    lines = (failed[-1].traceback or "").split("\n")
    return [Text(), cell(f"attempt {failed[-1].attempt} failed", "bold"), *(cell(f"  {line}", "dim") for line in lines)]


def letter_table(letters: Sequence[DeadLetter | LetterOutline]) -> Table:
    """Dead letters, one line each."""
    table = plain_table(
        *(("ID", "left"), ("TENANT", "left"), ("TOPIC", "left"), ("CODE", "left"), ("ATTEMPTS", "right")),
        *(("AT", "right"), ("RETRIED AS", "left"), ("REASON", "left")),
    )
    for letter in letters:
        table.add_row(
            cell(letter.id, "bold"),
            cell(letter.tenant),
            cell(letter.topic),
            cell(letter.code, "red"),
            str(letter.attempts),
            moment(at(letter.at_ns)),
            cell(letter.retried_as or "-", "" if letter.retried_as else "dim"),
            cell(short(letter.reason)),
        )
    return table


def as_json(value: object) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def short(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


def _fences(job: Job) -> str:
    told = [f"job {job.fence}" if job.fence else "", f"run {job.run_fence}" if job.run_fence else ""]
    return ", ".join(each for each in told if each)
