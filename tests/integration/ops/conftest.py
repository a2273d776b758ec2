"""Accounts are tested on each server: command categories differ."""

from support.fixtures.redis import each_redis as redis_executable

__all__ = ["redis_executable"]
