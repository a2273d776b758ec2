"""Measuring what it costs to keep many leases alive: CPU of this process, threads, requests, and what is lost."""

from __future__ import annotations

import threading
import time

from benchmarks.contender import Contender, Keep, Place
from benchmarks.measure import LIMIT_S, Measurement
from benchmarks.server import Server

PER_S = 10.0  # CPU time is given for so many seconds, however long it was measured


def keeping(contender: Contender[Keep], place: Place, server: Server, seconds: float, leases: int) -> Measurement:
    """Hold them all for a while and do nothing else."""
    threads = threading.active_count()
    with contender.connect(place, leases, LIMIT_S) as count_lost:
        before, cpu = server.load(), time.process_time()
        time.sleep(seconds)
        cpu, after = time.process_time() - cpu, server.load()
        started = threading.active_count() - threads
        lost = count_lost()
    passed = after.at_s - before.at_s
    return Measurement(
        cpu * PER_S / passed,
        {
            "threads": started,
            "requests_per_s": (after.reads - before.reads - 1) / passed,  # without INFO
            "commands_per_s": (after.commands - before.commands - 1) / passed,
            "lost": lost,
        },
    )
