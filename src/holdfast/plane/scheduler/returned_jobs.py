"""Jobs that no worker could take, remembered by topic: the first of them goes as soon as one of that topic has ended.

A topic may have fewer places than its pool: its function says so (`max_concurrency`), and none was where the message
came to, although one had been counted (`topicplaces`); or few of the workers know it. A job of it that came back waits
for a while, and for longer each time. Most places become free before that, and this process mostly hears of it; so it
remembers who waits. Promises nothing: what is forgotten, or was seen by another process, goes when its time has come.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT_MAX: Final = 1_000  # of each topic
TOPICS_MAX: Final = 1_000


class Parking:
    """What one scheduler remembers."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], deque[str]] = {}

    def came_back(self, pool: str, topic: str, job: str) -> None:
        """A job waits for a place of its topic."""
        waiting = self._waiting.get((pool, topic))
        if waiting is None:
            if len(self._waiting) >= TOPICS_MAX:
                self._waiting.pop(next(iter(self._waiting)))  # the one that was noted first
            waiting = self._waiting[pool, topic] = deque(maxlen=KEPT_MAX)
        waiting.append(job)

    def next(self, pool: str, topic: str) -> str | None:
        """A place of a topic is free: who has waited for longest, and is not remembered any more. None: nobody."""
        waiting = self._waiting.get((pool, topic))
        if waiting is None:
            return None
        job = waiting.popleft()
        if not waiting:
            del self._waiting[pool, topic]
        return job
