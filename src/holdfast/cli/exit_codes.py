"""What the exit code of `holdfast` says. The table in docs/shell.md is drawn from here.

The codes are those of sysexits.h where one fits, because they keep clear of what programs commonly return themselves:
a script can tell "the lock was busy" from "my command failed with 1".
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType

from holdfast.errors import (
    BackendError,
    BadInput,
    HoldfastError,
    LeaseLost,
    LockBusy,
    Misconfigured,
    PolicyDenied,
    RowExists,
    RowMissing,
)
from holdfast.plane.model.job_states import InvalidTransition


class Exit(IntEnum):
    """The exit codes that `holdfast` itself uses; everything else is the code of the command that it ran."""

    OK = 0
    NO = 1
    NO_EXTRA = 2
    ACT = 3
    USAGE = 64
    UNAVAILABLE = 69
    BUG = 70
    IO = 74
    BUSY = 75
    LOST = 76
    DENIED = 77
    CONFIG = 78
    UNFINISHED = 124
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    SIGNALLED = 128


MEANING: MappingProxyType[Exit, str] = MappingProxyType(
    {
        Exit.OK: "success; with `run --on-busy skip` also: skipped, with a message on stderr",
        Exit.NO: "a negative result: `inspect` and `release` found the lock free; `guard check`, `check`, `demo` or a "
        "`drill` found a broken promise; `history` found no holder; the job or run does not exist or did not succeed; "
        "`up` or `worker` had to cut work short; `runbook` has no sufficient evidence; `tune` found that an SLO cannot "
        "be kept or, with `--check`, that the settings contradict the data; `doctor` has a critical finding",
        Exit.NO_EXTRA: 'the command line is not installed: `pip install "holdfast[cli]"`',
        Exit.ACT: "`runbook` found a problem and prints the next commands; `doctor` has a warning",
        Exit.USAGE: "bad usage: an option, a name, a URL or a duration is wrong; nothing was sent",
        Exit.UNAVAILABLE: "the store could not be reached or did not respond in time; the command was not run",
        Exit.BUG: "a bug of Holdfast; `HOLDFAST_DEBUG=1` prints the traceback",
        Exit.IO: "an error of the operating system: standard output could not be written (a full disk), or the "
        "current directory is gone; earlier effects of the command stay",
        Exit.BUSY: "another owner holds the lock; the command was not run",
        Exit.LOST: "the lease was lost while the command ran; the command and all its children were terminated",
        Exit.DENIED: "the store failed and the policy of the risk class does not allow to run without it",
        Exit.CONFIG: "a permanent store error: password, permissions, missing driver, tables of the plane that are "
        "missing or of another version",
        Exit.UNFINISHED: "`jobs follow` or `runs follow` with `--timeout`: not finished in time, like `timeout`",
        Exit.NOT_EXECUTABLE: "the command was found and cannot be executed",
        Exit.NOT_FOUND: "the command was not found; the lock was not taken",
        Exit.SIGNALLED: "the command, or `holdfast` while it waited, was ended by signal n (143 is TERM)",
    }
)

_ERRORS: tuple[tuple[type[HoldfastError], Exit], ...] = (
    (BadInput, Exit.USAGE),
    (LockBusy, Exit.BUSY),
    (LeaseLost, Exit.LOST),
    (PolicyDenied, Exit.DENIED),
    (Misconfigured, Exit.CONFIG),
    (BackendError, Exit.UNAVAILABLE),
    (RowMissing, Exit.NO),
    (RowExists, Exit.NO),
    (InvalidTransition, Exit.NO),
)


def exit_for(error: HoldfastError) -> Exit:
    """The exit code of an error."""
    found = next((code for kind, code in _ERRORS if isinstance(error, kind)), None)
    return _on_the_plane(error) if found is None else found


def _on_the_plane(error: HoldfastError) -> Exit:
    from holdfast.plane.model.caller import NotAllowed  # the plane is large, and most commands never need it
    from holdfast.plane.workflows.run_quotas import TooManyRuns

    return Exit.NO if isinstance(error, NotAllowed | TooManyRuns) else Exit.BUG


def table() -> str:
    """The exit codes as a table for the documentation."""
    rows = [f"| {'128 + n' if code is Exit.SIGNALLED else int(code)} | {text} |" for code, text in MEANING.items()]
    return "\n".join(["| Code | Meaning |", "|---|---|", *rows]) + "\n"
