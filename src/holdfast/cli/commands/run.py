"""`holdfast run`: a command under a lease."""

from __future__ import annotations

import os
import shutil
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from holdfast.cli.exit_codes import Exit, exit_for
from holdfast.cli.lease_stores import opened, url_of
from holdfast.cli.options import Name, Url
from holdfast.cli.output.screen import seconds
from holdfast.cli.parse_time import duration_option
from holdfast.cli.plane_options import Config, Database
from holdfast.cli.supervise.reporter import Reporter
from holdfast.cli.supervise.signals import Interrupted, Signals
from holdfast.cli.supervise.supervisor import Supervisor
from holdfast.errors import AcquireTimeout, HoldfastError
from holdfast.leases.lock_spec import LockSettings
from holdfast.leases.sync.client import Locks
from holdfast.leases.sync.lease import DegradedLease, Lease
from holdfast.leases.sync.lock import Lock
from holdfast.types import NS, duration_ns

EPILOG = "\n\n".join(
    (
        "[bold]Examples[/bold]",
        "[dim]$[/dim] holdfast run nightly -- ./backup.sh --full",
        "[dim]$[/dim] holdfast run report --on-busy skip --ttl 60 --at-least 60 -- make report",
        "[dim]$[/dim] holdfast run deploy --timeout 300 -- sh -c 'deploy --fence \"$HOLDFAST_FENCE\"'",
        "[bold]Environment of the command[/bold]",
        (
            "HOLDFAST_KEY, HOLDFAST_OWNER, HOLDFAST_FENCE (empty if the store failed and the policy allows to run), "
            "HOLDFAST_DEADLINE (Unix time until which the lease is valid without renewal)."
        ),
        "[bold]Exit codes[/bold]",
        (
            "The command's own; 128 + n if signal n ended it; 75 busy; 76 lease lost; 69 store unavailable; 77 denied "
            "by the policy; 78 store misconfigured; 64 usage; 126 and 127 the command cannot be executed or found."
        ),
    )
)


class _RunCommand(TyperCommand):
    """Adds the position of the command to the usage text, which the parser does not know."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["NAME", "[OPTIONS]", "--", "CMD..."]


class OnBusy(StrEnum):
    """The action if another owner holds the lock."""

    WAIT = "wait"
    SKIP = "skip"
    FAIL = "fail"


Timeout = Annotated[
    float | None,
    duration_option(
        help="Maximum wait while the lock is busy. [dim]\\[default: forever with wait, none with skip and fail][/dim]",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", cls=_RunCommand, epilog=EPILOG)(run)


def run(
    context: typer.Context,
    name: Name,
    command: Annotated[list[str], typer.Argument(metavar="CMD…", help="The command.", show_default=False)],
    ttl: Annotated[float, duration_option(help="Lifetime of the lease without renewal.")] = 30.0,
    timeout: Timeout = None,
    on_busy: Annotated[
        OnBusy,
        typer.Option(help="If it is still busy then: print a message and exit 0 (skip), or exit 75 (wait, fail)."),
    ] = OnBusy.WAIT,
    at_least: Annotated[
        float, duration_option(help="Minimum hold (up to the ttl), even if the command ends sooner.")
    ] = 0.0,
    family: Annotated[str, typer.Option(metavar="F", help="The lock family, for tables and metrics.")] = "default",
    risk: Annotated[
        str | None,
        typer.Option(metavar="R", help="The risk class: selects the error policy in the policy file."),
    ] = None,
    policy_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help='A TOML file, such as: \\[risk] low = "fail_open".')
    ] = None,
    grace: Annotated[
        float, duration_option(help="Time between TERM and KILL for the command when the lease is lost.")
    ] = 10.0,
    max_hold: Annotated[
        float | None, duration_option(help="Maximum hold of the lease; then the command is ended.")
    ] = None,
    url: Url = None,
    config: Config = None,
    database: Database = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines on stderr.")] = False,
) -> int:
    """Run a command while holding a lock, and end it if the lock is lost.

    The lease is renewed while any process of the command's group lives, and released after the last one.
    """
    report = Reporter(as_json=json)
    grace_s = duration_ns("grace", grace) / NS
    settings: LockSettings = {"ttl": ttl, "family": family, "at_least": at_least}
    if max_hold is not None:
        settings["max_hold"] = max_hold
    try:
        options: dict[str, Any] = {"policy_file": policy_file, "observers": [report]}
        with Signals() as signals, opened(url_of(context, url), config, database, **options) as (locks, store):
            report("store", f"lease store: {store}", quiet=True, **store.fields())
            settings["on_lost"] = signals.lost
            lock = locks.lock(name, **settings) if risk is None else locks.lock(name, risk=risk, **settings)
            code = _missing(command[0], report)
            if code is not None:
                return code
            if not locks.capabilities.shared:
                report("private", "this store is private to one process: it excludes no other process")
            lease = _acquire(lock, timeout, on_busy)
            if lease is None:
                return _busy(locks, name, on_busy, report)
            code, had_terminal = _under(lease, command, grace_s, signals, report)
    except Interrupted as interrupted:
        report("interrupted", f"{interrupted}; the command was not run")
        return Exit.SIGNALLED + interrupted.number
    except HoldfastError as error:
        if not json:
            raise
        report("failed", str(error), code=int(exit_for(error)))
        return exit_for(error)
    if code == Exit.SIGNALLED + signal.SIGINT and (had_terminal or signal.SIGINT in signals.seen):
        _die_of_ctrl_c(whole_group=had_terminal)
    return code


def _die_of_ctrl_c(*, whole_group: bool) -> None:
    """End by SIGINT ourselves, so that a calling script ends as well.

    If the command had the terminal, only the command got Ctrl-C; then we pass it on to the script.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if whole_group:
        os.killpg(os.getpgrp(), signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)


def _acquire(
    lock: Lock[Lease] | Lock[Lease | DegradedLease], timeout: float | None, on_busy: OnBusy
) -> Lease | DegradedLease | None:
    if timeout is None and on_busy is not OnBusy.WAIT:
        return lock.try_acquire()
    try:
        return lock.acquire(timeout)
    except AcquireTimeout:
        return None


def _busy(locks: Locks, name: str, on_busy: OnBusy, report: Reporter) -> int:
    """Report the holder."""
    look = locks.inspect(name)
    by = f"held by {look.owner}, {seconds(look.remaining)} left" if look.held else "free again since just now"
    fields: dict[str, Any] = {"key": name, "holder": look.owner, "remaining": look.remaining}
    if on_busy is OnBusy.SKIP:
        report("skipped", f"skipped: {name} is {by}; the command was not run", **fields)
        return Exit.OK
    report("gave_up", f"busy: {name} is {by}; the command was not run", **fields, code=int(Exit.BUSY))
    return Exit.BUSY


def _under(
    lease: Lease | DegradedLease, command: list[str], grace_s: float, signals: Signals, report: Reporter
) -> tuple[int, bool]:
    """Run the command under the lease and release the lease. Returns the exit code, and whether it had the terminal."""
    try:
        signals.pass_on()
        signals.take_over_stopping()
        report(
            "granted",
            f"{lease.key} granted",
            quiet=True,
            key=lease.key,
            owner=lease.owner,
            fence=lease.fence,
            ttl=lease.ttl,
            guaranteed=lease.guaranteed,
        )
        if not lease.guaranteed:
            report(
                "degraded", f"the store failed and the policy lets {lease.key} run WITHOUT it: others may run it too"
            )
        supervisor = Supervisor(lease, grace_s, signals, report)
        code = supervisor.run(command, _environment(lease))
    finally:
        lease.release()
    if report.refused and code != Exit.LOST:
        report("lost", f"lease lost (stolen): {lease.key} had another owner when the command ended", key=lease.key)
        return Exit.LOST, False
    return code, supervisor.had_terminal


def _environment(lease: Lease | DegradedLease) -> dict[str, str]:
    return {
        **os.environ,
        "HOLDFAST_KEY": lease.key,
        "HOLDFAST_OWNER": lease.owner,
        "HOLDFAST_FENCE": "" if lease.fence is None else str(lease.fence),
        "HOLDFAST_DEADLINE": f"{time.time() + lease.remaining():.3f}",
    }


def _missing(program: str, report: Reporter) -> int | None:
    """The exit code if the command cannot be executed, checked before the lock is taken."""
    if shutil.which(program) is not None:
        return None
    if os.sep in program and Path(program).exists():
        report("not_executable", f"{program}: cannot be executed", code=int(Exit.NOT_EXECUTABLE))
        return Exit.NOT_EXECUTABLE
    report("not_found", f"{program}: command not found", code=int(Exit.NOT_FOUND))
    return Exit.NOT_FOUND
