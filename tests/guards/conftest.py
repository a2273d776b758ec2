"""The guards run on each server."""

from fixtures_redis import each_redis as redis_executable

__all__ = ["redis_executable"]
