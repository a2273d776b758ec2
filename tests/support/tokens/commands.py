"""Every command of the shell, typed beside a plane that runs, with everything that it says kept for a search."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from holdfast.cli.app import make_app
from holdfast.ops.runbooks import RUNBOOKS
from support.cli.sessions import LIMIT_S, Done, Shell
from support.tokens.leaks import CALLERS, Sinks

HERE: Final = Path(__file__).resolve().parent
METRICS: Final = {"HOLDFAST_METRICS_TOKEN": CALLERS["ada"]}

# Every command that shows something, as it is typed beside a plane that runs: `{job}` is one of its jobs, `{address}`
# its own address. A command that is in neither table fails a test.
COMMANDS: Final = (
    *(("locks",), ("inspect", "watched"), ("watch", "--count", "1"), ("audit",), ("inventory",), ("check", "audit")),
    *(
        ("history", "holdfast:scheduler:snapshot:writer"),
        ("up", "--check"),
        ("version",),
        ("doctor",),
        ("policy", "show"),
    ),
    *(
        ("jobs", "list"),
        ("jobs", "dead-letters"),
        ("jobs", "show", "{job}"),
        ("jobs", "follow", "{job}"),
        ("jobs", "stats"),
    ),
    *(("runs", "list"), ("runs", "show", "run-1"), ("runs", "timeline", "run-1"), ("runs", "follow", "run-1")),
    *(("runs", "workflows"), ("approvals", "list"), ("approvals", "show", "run-1:agreed@1"), ("policy", "history")),
    *(("alerts",), ("alerts", "--list"), ("dashboard",), ("dashboard", "--list")),
    *(
        ("tune", "--history", "audit"),
        ("tune", "--metrics", "{address}/metrics"),
        ("tune", "--diff"),
        ("runbook", "--list"),
    ),
    ("schedules", "list"),
    *(("resources", "list"), ("resources", "audit"), ("workers", "list"), ("tenants", "list"), ("config", "show")),
    *(("access", "redis"), ("access", "postgres"), ("access", "nats"), ("access", "etcd"), ("policy", "exercise")),
)
ONCE: Final = {"version", "inventory", "alerts", "dashboard", "access"}  # made of settings alone, in either form
EVIDENCE: Final = ("--metrics", "{address}", "--ledger", "audit", "--since", "5m", "--interval", "0.05", "--yes")
ELSEWHERE: Final = {
    **dict.fromkeys(("run", "up", "release", "runs start"), "used by the test itself"),
    **dict.fromkeys(("drill mark", "drill compound", "drill unmark"), "likewise, with what its workers are given"),
    **dict.fromkeys(("jobs submit", "jobs cancel", "jobs retry"), "show what `jobs show` shows"),
    **dict.fromkeys(("runs define", "runs cancel", "runs rerun"), "show what `runs show` shows"),
    **dict.fromkeys(("approvals approve", "approvals reject", "policy set"), "show what is shown of them"),
    **dict.fromkeys(("guard install", "guard check", "guard remove"), "know a database and no lease"),
    "resources release": "shows what `resources audit` shows",
    "why": "is the runbook of that name",
    "worker": "its log is that of the worker in `up`",
    **dict.fromkeys(
        (f"schedules {each}" for each in ("show", "create", "pause", "resume", "run", "delete")),
        "show what `schedules list` shows",
    ),
    "tokens create": "shows a new token of a caller, which is its purpose",
    "tenants limit": "shows what `tenants list` shows",
    "jobs dead": "is `jobs dead-letters` under its former name",
    "demo": "is `drill quick`, in a store of its own",
}


def recording_environment(shell: Shell) -> dict[str, str]:
    """What makes `token_record` write down the tokens of a process, and of every Python that it starts."""
    environment = shell.environment(TOKENS_FILE=str(shell.directory / "given"))
    return {**environment, "PYTHONPATH": os.pathsep.join([str(HERE / "site"), environment["PYTHONPATH"]])}


def unknown_commands() -> set[str]:
    """Commands that are neither listed as typed nor as tested elsewhere."""
    known = {" ".join(words[:2]) for words in COMMANDS} | {words[0] for words in COMMANDS} | set(ELSEWHERE)
    return {each for each in _all_of(get_command(make_app())) if each not in known and not each.startswith("drill ")}


def _all_of(command: Any, *before: str) -> list[str]:
    if not hasattr(command, "commands"):
        return [" ".join(before)]
    return [name for word, each in command.commands.items() for name in _all_of(each, *before, word)]


def look_at_commands(shell: Shell, sinks: Sinks, **values: str) -> None:
    """What is shown for people and for programs."""
    for words in COMMANDS:
        typed = [word.format(**values) for word in words]
        for more in ((), ("--json",)) if words[0] not in ONCE else ((),):
            done = shell.run(*typed, *more, env={"HOLDFAST_LEDGER": "audit", **METRICS})
            assert done.code in {0, 1, 3}, (typed, done)  # 3: `doctor` has a warning
            assert done.out, typed
            sinks.look("commands", done.out, done.err)


def look_at_runbooks(shell: Shell, sinks: Sinks, **values: str) -> None:
    """The same for runbooks, with all their evidence; and for those that take leases, with those leases."""
    evidence = [word.format(**values) for word in EVIDENCE]
    for number, (name, runbook) in enumerate(RUNBOOKS.items()):
        words = ("runbook", name, *evidence, *(("--json",) if number % 2 else ()))
        done = _recorded(shell, *words) if runbook.writes else shell.run(*words, env=METRICS)
        assert done.code in {0, 1, 3}, (name, done)
        assert done.out, name
        sinks.look("runbooks", done.out, done.err)


def look_at_a_drill(shell: Shell, sinks: Sinks) -> None:
    """A drill in the same store, with its report: what its workers were given is in none of it."""
    given, report = shell.directory / "given", shell.directory / "drill.html"
    before = len(given.read_text().split())
    drill = ("drill", "compound", "--url", shell.url, "--slo", "60", "--duration", "1", "--report", str(report))
    for words in (
        ("drill", "mark", "--url", shell.url, "--for", "600"),
        drill,
        ("drill", "unmark", "--url", shell.url),
    ):
        done = _recorded(shell, *words)
        assert done.code == 0, (words, done)
        sinks.look("drill", done.out, done.err)
    sinks.look("report", report.read_text(encoding="utf-8"))
    assert len(given.read_text().split()) > before, "its workers were given leases"


def _recorded(shell: Shell, *words: str) -> Done:
    """Run it with everything written down that it is given, and those whom it starts."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=shell.directory,
        env={**recording_environment(shell), **METRICS},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
