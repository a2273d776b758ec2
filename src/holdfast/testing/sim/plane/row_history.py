"""What the rows of a simulated plane went through, kept by the database itself: every committed change, in order.

Triggers write each change of a job, a run and a dead letter into a table that lives and falls with the transaction; it
is read just before the commit. So it contains every committed change, of any process and statement, and none that
was rolled back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple


class JobSeen(NamedTuple):
    """One committed change of the row of a job. `before` None: it was made."""

    at_ns: int
    commit: int
    job: str
    tenant: str
    pool: str
    before: str | None
    after: str
    version_before: int
    version: int
    fence_before: int | None
    fence: int | None
    run_fence_before: int | None
    run_fence: int | None
    attempt: int
    max_attempts: int
    code: str | None


class RunSeen(NamedTuple):
    """One committed change of the row of a run."""

    at_ns: int
    commit: int
    run: str
    before: str | None
    after: str
    version_before: int
    version: int
    fence_before: int | None
    fence: int | None


class LetterSeen(NamedTuple):
    """One dead letter."""

    at_ns: int
    commit: int
    letter: str
    job: str
    code: str
    last_state: str | None
    attempts: int


_TRIGGERS: Final = """
CREATE TEMP TABLE sim_seen (
    kind TEXT NOT NULL, a TEXT, b TEXT, c TEXT, d TEXT, e TEXT, f INT, g INT, h INT, i INT, j INT, k INT, l INT, m INT,
    n TEXT
);
CREATE TEMP TRIGGER sim_job_made AFTER INSERT ON main.plane_job BEGIN
    INSERT INTO sim_seen VALUES ('job', new.id, new.tenant, new.pool, NULL, new.state, -1, new.version, NULL,
        new.holdfast_fence, NULL, new.run_fence, new.attempt, new.max_attempts, new.code);
END;
CREATE TEMP TRIGGER sim_job_changed AFTER UPDATE ON main.plane_job BEGIN
    INSERT INTO sim_seen VALUES ('job', new.id, new.tenant, new.pool, old.state, new.state, old.version, new.version,
        old.holdfast_fence, new.holdfast_fence, old.run_fence, new.run_fence, new.attempt, new.max_attempts, new.code);
END;
CREATE TEMP TRIGGER sim_run_made AFTER INSERT ON main.plane_run BEGIN
    INSERT INTO sim_seen VALUES ('run', new.id, NULL, NULL, NULL, new.status, -1, new.version, NULL,
        new.holdfast_fence, NULL, NULL, NULL, NULL, NULL);
END;
CREATE TEMP TRIGGER sim_run_changed AFTER UPDATE ON main.plane_run BEGIN
    INSERT INTO sim_seen VALUES ('run', new.id, NULL, NULL, old.status, new.status, old.version, new.version,
        old.holdfast_fence, new.holdfast_fence, NULL, NULL, NULL, NULL, NULL);
END;
CREATE TEMP TRIGGER sim_letter_made AFTER INSERT ON main.plane_dead_letter BEGIN
    INSERT INTO sim_seen VALUES ('letter', new.id, new.job, new.code, new.last_state, '', new.attempts, 0, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL);
END;
"""


class CommitHistory:
    """Everything that was committed."""

    def __init__(self, trace: Callable[[str, str], None]) -> None:
        self.jobs: list[JobSeen] = []
        self.runs: list[RunSeen] = []
        self.letters: list[LetterSeen] = []
        self._trace = trace
        self._commits = 0

    def watch(self, connection: sqlite3.Connection) -> None:
        """Begin to see, once the tables are there."""
        connection.executescript(_TRIGGERS)

    def pending(self, connection: sqlite3.Connection) -> list[tuple[object, ...]]:
        """What the open transaction would change, taken out of the way of the next one."""
        rows = connection.execute("SELECT * FROM temp.sim_seen ORDER BY rowid").fetchall()
        if rows:
            connection.execute("DELETE FROM temp.sim_seen")
        return rows

    def committed(self, at_ns: int, rows: list[tuple[object, ...]]) -> None:
        """It did change it."""
        self._commits += bool(rows)
        for kind, *row in rows:
            if kind == "job":
                self._job(JobSeen(at_ns, self._commits, *row))  # type: ignore[arg-type]  # as the triggers write them
            elif kind == "run":
                name, _, _, before, after, *numbers = row
                self.runs.append(RunSeen(at_ns, self._commits, name, before, after, *numbers[:4]))  # type: ignore[arg-type]  # as above
                self._trace(str(name), f"{before} -> {after}")
            else:
                letter, job, code, last_state, _, attempts = row[:6]
                self.letters.append(LetterSeen(at_ns, self._commits, letter, job, code, last_state, attempts))  # type: ignore[arg-type]  # as above
                self._trace(str(job), f"dead letter {letter}: {code}")

    def _job(self, seen: JobSeen) -> None:
        self.jobs.append(seen)
        self._trace(seen.job, f"{seen.before} -> {seen.after} v{seen.version} fence {seen.fence} run {seen.run_fence}")
