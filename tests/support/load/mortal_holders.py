"""Processes that take turns with one lock, and are killed in the middle of it.

Run as `python mortal_holders.py URL FOLDER COUNT KILLS`. Each process writes a line when its turn begins and one when
it ends, on the machine's monotonic clock. The parent kills a process that is in a turn, with SIGKILL, notes when, and
starts another one, until it has killed so many; then it tells the rest to end. The history of each process
is a file in the folder; a turn that was cut short ends with its process.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import holdfast

TTL_S = 2.0
TURN_S = 0.02
TURNS_APART = 12  # between two kills, and after the last one
LIMIT_S = 100.0


def work(url: str, history: Path, stop: Path) -> None:
    """Take turns until told to end."""
    with holdfast.connect(url, service="mortal") as locks, history.open("a", encoding="utf-8") as file:
        while not stop.exists():
            try:
                lease = locks.lock("k", ttl=TTL_S).acquire(timeout=1)
            except (holdfast.LockBusy, holdfast.BackendError):
                continue
            _write(file, {"fence": lease.fence, "began": time.monotonic_ns()})
            time.sleep(TURN_S)  # the work of a turn
            if lease.held:
                _write(file, {"fence": lease.fence, "ended": time.monotonic_ns()})
            lease.release()


def _write(file: object, line: dict[str, int]) -> None:
    print(json.dumps(line), file=file, flush=True)  # type: ignore[call-overload]  # an open text file


def in_a_turn(history: Path) -> bool:
    """Whether the last line of a history is the beginning of a turn."""
    lines = history.read_text().splitlines() if history.exists() else []
    return bool(lines) and "began" in lines[-1]


def turns(folder: Path) -> int:
    """How many turns have ended."""
    return sum(each.read_text().count('"ended"') for each in folder.glob("*.jsonl"))


def start(url: str, history: Path, stop: Path) -> int:
    """Fork a process that takes turns."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work(url, history, stop)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Gather the processes, kill some of them, and fail if one of the others did."""
    url, folder, count, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    stop, end = folder / "stop", time.monotonic() + LIMIT_S
    histories = (folder / f"{number}.jsonl" for number in itertools.count())
    running: dict[Path, int] = {}
    for history in itertools.islice(histories, count):
        running[history] = start(url, history, stop)
    killed = 0
    while turns(folder) < TURNS_APART * (kills + 1) and time.monotonic() < end:
        for history, pid in list(running.items()):
            if killed < kills and turns(folder) >= TURNS_APART * (killed + 1) and in_a_turn(history):
                when = time.monotonic_ns()  # a successor may know of its end before we do
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                if in_a_turn(history):  # else it had just ended its turn
                    killed += 1
                    with history.open("a", encoding="utf-8") as file:
                        _write(file, {"fence": -1, "killed": when})
                del running[history]
                replacement = next(histories)
                running[replacement] = start(url, replacement, stop)
        time.sleep(0.001)  # between two looks at the histories, not instead of one
    stop.touch()
    codes = [os.waitpid(pid, 0)[1] for pid in running.values()]
    sys.exit(any(codes) or killed < kills)


if __name__ == "__main__":
    main()
