"""A mutex, for rooms that start no thread and are called from any: what they share needs one all the same."""

from __future__ import annotations

from threading import Lock as Mutex

__all__ = ["Mutex"]
