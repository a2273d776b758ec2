"""Celery on Redis, results kept in Redis: `python -m celery -A benchmarks.jobs.peer_celery worker`.

Its defaults, but for two: results are on, because all others here keep them, and a message is acknowledged after the
task has run (`task_acks_late`), because with the default a task is lost with the worker that has taken it.
"""

from __future__ import annotations

import os

from benchmarks.contender import module
from benchmarks.jobs.stamps import note, nothing

app = module("celery").Celery("peer", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_RESULTS"])
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)

noop = app.task(nothing, name="noop")
stamp = app.task(note, name="stamp")
