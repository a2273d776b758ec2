"""Incidents inside of the plane: workers, handlers, topics, tenants, jobs and people. See `server_incidents`."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from typing import Final

import holdfast
from holdfast.drills.incidents.fleet import OTHER, IncidentFleet, until
from holdfast.drills.incidents.play import IncidentPlay
from holdfast.plane.locks.registry import SNAPSHOT_WRITER
from holdfast.types import NS

_HELD_S: Final = 30.0
_FLOOD: Final = 130
_HOURS_NS: Final = 7200 * NS


def worker_paused(it: IncidentPlay) -> None:
    """A worker with a job is stopped."""
    fleet = it.fleet()
    fleet.start()
    fleet.running(fleet.submit("nap", 600))
    pid = fleet.workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    it.began("stopped the worker")
    it.found("its process is stopped", command=f"kill -CONT {pid}")


def hung_handler(it: IncidentPlay) -> None:
    """Handlers fill all slots and never return, while jobs wait behind them."""
    fleet = it.fleet()
    fleet.start(slots=4)
    for _ in range(6):
        fleet.finish("hang")
    for _ in range(6):
        fleet.submit("hang", 1)
    it.began("filled all slots with handlers that never return")
    it.found(
        "4 attempts hang (hang 4)",
        "They use 4 of 4 busy slots of pool default",
        "more workers do not cure it",
        command=f"py-spy dump --pid {fleet.workers[0].pid}",
    )


def topic_without_workers(it: IncidentPlay) -> None:
    """A job has a topic that no worker serves, although its pool has free workers."""
    fleet = it.fleet()
    fleet.start()
    fleet.submit("elsewhere")
    it.began("submitted a job with a topic that no worker serves")
    it.found("No live worker serves topic elsewhere: 1 job waits", "no worker has ever announced it")
    served = [each["rule"] for each in fleet.api("/findings")["findings"]]
    it.claim("the API and the command agree", served[0] == it.incident.finding, ", ".join(served))
    fleet.work(OTHER)
    it.over()


def failing_jobs(it: IncidentPlay) -> None:
    """All jobs of a topic fail with the same error."""
    fleet = it.fleet()
    fleet.start()
    for _ in range(10):
        fleet.submit("fail")
    it.began("submitted ten jobs that fail")
    it.found("10 jobs of topic fail", "the invoice has no address")


def poison(it: IncidentPlay) -> None:
    """A job kills every worker that runs it."""
    fleet = it.fleet()
    fleet.start(workers=3)
    job = fleet.submit("die", max_attempts=2)
    it.began("submitted a job that kills its worker")
    it.found(f"Poison job {job}", "kills its worker", command=f"holdfast jobs cancel {job}")


def tenant_flood(it: IncidentPlay) -> None:
    """One tenant fills the queue, and another one waits behind it."""
    fleet = it.fleet()
    fleet.start(slots=2)
    for _ in range(2):
        fleet.submit("nap", 600, "acme")
    for _ in range(_FLOOD):
        fleet.submit("nap", 0.1, "acme")
    fleet.submit("quick", tenant="globex")
    it.began(f"submitted {_FLOOD} jobs of one tenant")
    it.found(f"Tenant acme floods the plane: {_FLOOD} of {_FLOOD + 1}", "globex waits for")


def stuck_leader(it: IncidentPlay) -> None:
    """A process holds the lock of the worker snapshot, renews it, and writes nothing."""
    fleet = it.fleet()
    leader = fleet.serve("snapshot")
    leader.said("started")
    fleet.start(without="snapshot")
    until(lambda: fleet.api("/status").get("snapshot"), "a worker snapshot")
    with holdfast.connect(f"sqlite:///{fleet.directory / 'plane.db'}", service="stuck", instance="elsewhere") as locks:
        lock = locks.lock(SNAPSHOT_WRITER.key(), ttl=_HELD_S)
        leader.end()
        with lock.acquire(timeout=2 * _HELD_S):
            it.began("a process took the lock of the snapshot, and writes none")
            it.found("leads the loop and writes nothing: it is stuck", command="holdfast runbook snapshot-leader")
        fleet.serve("snapshot")
        it.over()


def approval_waits(it: IncidentPlay) -> None:
    """An approval has waited for two hours, and its requester may not decide it."""
    fleet = it.fleet()
    fleet.start(workers=0)
    (fleet.directory / "refund.yaml").write_text("name: refund\nsteps:\n  ask: {kind: approval}\n", encoding="utf-8")
    fleet.run("runs", "start", "refund.yaml")
    until(lambda: fleet.api("/approvals")["items"], "an approval")
    _age(fleet, _HOURS_NS)
    it.began("an approval has waited for two hours")
    it.found("1 approval waits for a person", "may not decide it", "for 2 h")


def _age(fleet: IncidentFleet, by_ns: int) -> None:
    """Set the last change of all jobs back."""
    with closing(sqlite3.connect(fleet.directory / "plane.db")) as database, database:
        database.execute("UPDATE plane_job SET updated_ns = updated_ns - ?", (by_ns,))
