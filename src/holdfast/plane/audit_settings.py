"""The settings of the audit ledger, which keeps what happened to leases in files that outlive the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.plane.setting_keys import key
from holdfast.plane.setting_kinds import Choice, Flag, Seconds, Text, Whole

AUDITED: Final = "audited"
EVERYTHING: Final = "everything"
BESIDE: Final = ".audit"
"""What the ledger beside a SQLite file is called, after the name of the file."""

_DAY: Final = 86_400.0
_LONG: Final = 20 * 365 * _DAY


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The audit ledger: who held what, and why it was lost. See docs/audit.md."""

    enabled: bool = key(True, Flag(), "whether one is kept", "--no-audit")
    path: str | None = key(
        None,
        Text("/var/lib/holdfast/audit"),
        f"its directory, which processes share; not given: NAME{BESIDE} beside a SQLite database, else none",
        "--audit",
    )
    records: str = key(
        AUDITED,
        Choice((AUDITED, EVERYTHING)),
        "everything: also busy attempts, warnings, and the reads and writes that the guards accepted",
    )
    file_size: int = key(16, Whole(1, 1024), "MiB after which a process begins its next file")
    file_age: float = key(_DAY, Seconds(1.0, _LONG), "after which it does so anyway")
    keep_size: int = key(512, Whole(1, 1_000_000), "MiB in the directory, above which the oldest files go")
    keep_age: float | None = key(None, Seconds(1.0, _LONG), "after which files go; not given: whatever their age")
    sync: float = key(
        1.0,
        Seconds(0.0, 3600.0),
        "within which a line is on the disk itself, in case the host loses power; 0: at once",
    )
