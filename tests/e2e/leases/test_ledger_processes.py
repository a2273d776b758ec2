"""The audit ledger in real processes: several together, one that is killed, one that forks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast.core.history.holds import lost
from holdfast.core.history.invariants import check
from holdfast.core.lease.loss_diagnosis import cause
from holdfast.observe.ledger.reader import Findings, load, read
from holdfast.observe.ledger.writer import Ledger
from holdfast.types import NS
from support.faults.freeze import freeze
from support.source_tree import ROOT

EACH = 1_500

_WRITER = """
import sys
from holdfast.core.history.events import EventKind, Record
from holdfast.observe.ledger.writer import Ledger
path, name, each, stays = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "stays"
ledger = Ledger(path, file_bytes=16384)
for number in range(1, each + 1):
    ledger.note(Record(EventKind.GRANTED, number, name, owner=name, fence=number))
    if number % 100 == 0:
        ledger.flush(60)
print("written", flush=True)
if stays:
    sys.stdin.read()
"""

_FORKER = """
import os, sys
import holdfast
from holdfast.observe.ledger.writer import Ledger
ledger = Ledger(sys.argv[1])
with holdfast.connect("sqlite:///" + sys.argv[2], observers=[ledger]) as locks:
    with locks.lock("before"):
        pass
    assert ledger.flush(60)
    child = os.fork()
    with locks.lock("child" if child == 0 else "parent"):
        pass
    if child == 0:
        ledger.close(60)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ledger.close(60)
"""

_HOLDER = """
import sys
import holdfast
from holdfast.observe.ledger.writer import Ledger
with Ledger(sys.argv[1]) as ledger, holdfast.connect(sys.argv[2], service="frozen", observers=[ledger]) as locks:
    lease = locks.lock("k", ttl=2).acquire()
    print("held", flush=True)
    assert lease.lost.wait(60)
"""


def start(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )


def test_several_processes_write_one_ledger_and_a_killed_one_tears_nothing_of_the_others(tmp_path: Path) -> None:
    writers = [start(_WRITER, str(tmp_path), f"p{number}", str(EACH), "ends") for number in range(3)]
    victim = start(_WRITER, str(tmp_path), "victim", str(EACH), "stays")
    assert victim.stdout is not None
    assert victim.stdout.readline() == "written\n"
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    findings = Findings()
    found = list(read(tmp_path, findings=findings))
    counts = Counter(record.owner for record in found)
    assert counts == {"victim": EACH, "p0": EACH, "p1": EACH, "p2": EACH}  # at the exit of a process nothing is left
    assert (findings.damaged, findings.dropped) == (0, 0)
    assert findings.files > 4
    assert check(found) == []


def test_a_child_writes_a_file_of_its_own_and_repeats_nothing(tmp_path: Path) -> None:
    forker = start(_FORKER, str(tmp_path / "ledger"), str(tmp_path / "leases.db"))
    forker.communicate(timeout=60)
    assert forker.returncode == 0
    found = Counter((record.key, str(record.kind)) for record in read(tmp_path / "ledger"))
    assert found == {(key, kind): 1 for key in ("before", "child", "parent") for kind in ("granted", "released")}
    assert len(list((tmp_path / "ledger").iterdir())) == 2


@pytest.mark.requires("R25")
def test_a_stopped_process_says_afterwards_that_it_did_not_run_and_who_took_over(tmp_path: Path) -> None:
    ledger, url = str(tmp_path / "ledger"), f"sqlite:///{tmp_path}/leases.db"
    holder = start(_HOLDER, ledger, url)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    freeze(holder.pid, url)
    with (
        Ledger(ledger) as ours,
        holdfast.connect(url, service="next", observers=[ours]) as locks,
        locks.lock("k", ttl=30) as lease,
    ):
        assert locks.hold("a while", ttl=1.5) is not None
        with locks.lock("a while"):  # so it was stopped for much longer than a late timer
            holder.send_signal(signal.SIGCONT)
        holder.communicate(timeout=60)
        fence = lease.fence
    assert holder.returncode == 0
    records = load(ledger)
    [hold] = lost(records)
    assert hold.loss is not None
    assert hold.loss.facts is not None
    assert hold.loss.facts["starved_ns"] > NS  # it was stopped until its time was over
    assert "the process did not run for" in cause("expired", hold.loss.facts)
    assert hold.next is not None
    assert (hold.next.fence, hold.next.owner.startswith("next@")) == (fence, True)
    assert hold.free_for_ns is not None
    assert check(records) == []
