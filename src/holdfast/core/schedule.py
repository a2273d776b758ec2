"""A calendar of things that are due, made for very many entries of which most are withdrawn before they come due.

Due times are rounded *down* to a slot, so that entries that are due at nearly the same time come out together (one
batched request) and never late. Adding and withdrawing cost one dictionary operation each; only whole slots are sorted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from holdfast.types import MS

T = TypeVar("T")

SLOT_NS = 20 * MS


class Calendar(Generic[T]):
    """Entries by due time. Not thread-safe: its owner guards it."""

    __slots__ = ("_heap", "_heaped", "_places", "_slot_ns", "_slots")

    def __init__(self, slot_ns: int = SLOT_NS) -> None:
        self._slot_ns = slot_ns
        self._slots: dict[int, dict[T, None]] = {}
        self._heap: list[int] = []
        self._heaped: set[int] = set()  # what is in the heap; an emptied slot stays there until it surfaces
        self._places: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: T) -> bool:
        return item in self._places

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._places))

    def put(self, item: T, due_ns: int) -> bool:
        """Enter an item, or move it. True when it is now the first to come due."""
        if item in self._places:
            self.drop(item)
        slot = due_ns // self._slot_ns
        entries = self._slot(slot)
        entries[item] = None
        self._places[item] = slot
        return self._heap[0] == slot and len(entries) == 1

    def put_all(self, items: Sequence[T], due_ns: int) -> None:
        """Enter many items that are due together and are not entered yet."""
        slot = due_ns // self._slot_ns
        self._slot(slot).update(dict.fromkeys(items))
        self._places.update(dict.fromkeys(items, slot))

    def drop(self, item: T) -> bool:
        """Withdraw an item. False when it was not there."""
        slot = self._places.pop(item, None)
        if slot is None:
            return False
        entries = self._slots[slot]
        del entries[item]
        if not entries:
            del self._slots[slot]
        return True

    def next_due_ns(self) -> int | None:
        """When the next slot comes due, or None when nothing is entered."""
        while self._heap and self._heap[0] not in self._slots:
            self._heaped.discard(heapq.heappop(self._heap))
        return self._heap[0] * self._slot_ns if self._heap else None

    def pop_due(self, now_ns: int, most: int | None = None) -> list[T]:
        """Take out what is due by now, earliest slot first, at most `most` items."""
        result: list[T] = []
        while (due := self.next_due_ns()) is not None and due <= now_ns:
            entries = self._slots[self._heap[0]]
            room = len(entries) if most is None else most - len(result)
            if room <= 0:
                break
            taken = list(entries)[:room]
            for item in taken:
                self.drop(item)
            result += taken
        return result

    def _slot(self, slot: int) -> dict[T, None]:
        entries = self._slots.get(slot)
        if entries is None:
            entries = self._slots[slot] = {}
            if slot not in self._heaped:
                self._heaped.add(slot)
                heapq.heappush(self._heap, slot)
        return entries
