"""The store tests run on real servers."""

from fixtures_redis import own_redis, play, redis_executable, redis_raw, redis_server, redis_url

__all__ = ["own_redis", "play", "redis_executable", "redis_raw", "redis_server", "redis_url"]
