"""A file of the plane that became read-only: it is read as before, and a failed write names the problem."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

READ_ONLY = """
import asyncio, concurrent.futures.thread, os, sys  # all that is needed, before it may be out of reach
from holdfast.plane.db import write_probe as writability
from holdfast.plane.db.open import open_database
from holdfast.plane.db.migrations import prepare
from holdfast.runtime.system import SystemClock

if os.getuid() == 0:  # to whom nothing is read-only
    os.setgid(65534)
    os.setuid(65534)

async def main(path):
    made = open_database(f"sqlite:///{path}")
    await prepare(made)
    await made.close()
    os.chmod(path, 0o444)
    database = open_database(f"sqlite:///{path}")
    print(await database.read(lambda tx: tx.query("SELECT 1 AS one")))
    writability.EVERY_S = 0.0
    question = writability.Writability(database, SystemClock())
    print((await question.refusal()).shown)
    for name in (path, f"{path}-wal", f"{path}-shm"):  # which are made as the file is
        os.chmod(name, 0o644)
    print(await question.refusal())
    await database.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_file_that_became_read_only_can_be_read_and_is_refused() -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o777)  # for another user, if this one is root
        command = [sys.executable, "-c", READ_ONLY, f"{made}/plane.db"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "[{'one': 1}]"
    assert second == (
        "plane.db cannot be written: the file, one beside it (-wal, -shm), the directory or the file system is "
        "read-only; give this user write permission, or mount it for writing"
    )
    assert third == "None", "and accepts writes again"
