"""The results that a worker has published lately, so that an attempt that is delivered again is not run again.

A message whose acknowledgement was lost comes back. If it comes to the worker that finished it, the result is published
once more, and changes nothing: the bus recognises its id, or the scheduler that the job is over. (Unless another worker
has begun the attempt since: then it is run again, see `worker_pool`.) Bounded in number and size, newest kept; so this
spares work, and is no promise: what protects an effect from being repeated is a guard.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from holdfast.plane.model.records import Message

RESULTS_MAX: Final = 1_000
CHARS_MAX: Final = 8_000_000


class Finished:
    """Published results by attempt (`Order.name`)."""

    def __init__(self, most: int = RESULTS_MAX, chars: int = CHARS_MAX) -> None:
        self._most = most
        self._chars = chars
        self._size = 0
        self._known: OrderedDict[tuple[str, int, int], tuple[Message, int]] = OrderedDict()

    def keep(self, name: tuple[str, int, int], message: Message, size: int) -> None:
        """Remember the result of an attempt, which is `size` characters long; forget the oldest if there is no room."""
        self.forget(name)
        self._known[name] = message, size
        self._size += size
        while len(self._known) > self._most or self._size > self._chars:
            self._size -= self._known.popitem(last=False)[1][1]

    def get(self, name: tuple[str, int, int]) -> Message | None:
        """The result of an attempt, if it is known."""
        found = self._known.get(name)
        return None if found is None else found[0]

    def forget(self, name: tuple[str, int, int]) -> None:
        """Forget one."""
        found = self._known.pop(name, None)
        if found is not None:
            self._size -= found[1]

    def __len__(self) -> int:
        return len(self._known)
