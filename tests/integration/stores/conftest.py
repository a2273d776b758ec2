"""The stores run on each server."""

from support.fixtures.redis import each_redis as redis_executable

__all__ = ["redis_executable"]
