"""redis-py, as far as guards use it; without it, an error that names the package to install."""

from __future__ import annotations

from typing import Final, TypeAlias

from holdfast.errors import Misconfigured

try:
    from redis import Redis, RedisCluster
    from redis import asyncio as awaited
    from redis import exceptions as trouble
    from redis.asyncio.client import Pipeline as _AwaitedPipeline
    from redis.asyncio.cluster import ClusterPipeline as _AwaitedClusterPipeline
    from redis.client import Pipeline as _Pipeline
    from redis.cluster import ClusterPipeline as _ClusterPipeline
except ModuleNotFoundError as error:
    if error.name != "redis":
        raise
    raise Misconfigured(
        'a guard on Redis needs a driver that is not installed (redis): pip install "holdfast[redis]"'
    ) from error

__all__ = ["PIPELINES", "TROUBLE", "AwaitedClient", "BlockingClient", "Redis", "RedisCluster", "awaited", "trouble"]

BlockingClient: TypeAlias = Redis | RedisCluster
AwaitedClient: TypeAlias = awaited.Redis | awaited.RedisCluster

PIPELINES: Final = (_Pipeline, _ClusterPipeline, _AwaitedPipeline, _AwaitedClusterPipeline)
"""What is a client by its class, and only queues commands."""

TROUBLE: Final = (trouble.RedisError, trouble.RedisClusterException)
"""Everything that redis-py raises on purpose."""
