"""Dramatiq on Redis, results kept in Redis: `python -m dramatiq benchmarks.jobs.peer_dramatiq`. Its defaults else."""

from __future__ import annotations

import os

from benchmarks.contender import module
from benchmarks.jobs.stamps import note, nothing

broker = module("dramatiq.brokers.redis").RedisBroker(url=os.environ["BENCH_BROKER"])
results = module("dramatiq.results.backends").RedisBackend(url=os.environ["BENCH_RESULTS"])
broker.add_middleware(module("dramatiq.results").Results(backend=results))
module("dramatiq").set_broker(broker)

actor = module("dramatiq").actor
noop = actor(nothing, actor_name="noop", store_results=True)
stamp = actor(note, actor_name="stamp", store_results=True)
