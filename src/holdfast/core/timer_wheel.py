"""A timer queue for very many items, of which most are withdrawn before they come due.

Due times are rounded *down* to a slot, so that items that are due at nearly the same time come out together (one
batched request) and never late. Adding and withdrawing cost a few dictionary operations; only whole slots are sorted.

Promises: every intermediate state is a valid one. A signal handler may raise between any two steps of any method: no
other item is affected, `pop_due` and `next_due_ns` never get stuck, and the leftover entry of a withdrawn item is
removed when its slot comes due. `drop`, `peek_ns` and iteration may be called from any thread and from signal handlers.

Does not promise: `put`, `put_all`, `next_due_ns` and `pop_due` from more than one thread at a time.

How: `_due` decides which items are in the queue, and in which slot; a slot entry that `_due` does not confirm is stale.
Each step is one operation of a dict or of the heap, which the interpreter does not interrupt. A slot is pushed to the
heap before it exists, so none is missing there; a number in the heap without a slot, or twice, does no harm.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from holdfast.types import MS

T = TypeVar("T")

SLOT_NS = 20 * MS


class TimerWheel(Generic[T]):
    """Items by due time. They are hashed by the interpreter itself: they have no `__hash__` or `__eq__` in Python."""

    __slots__ = ("_due", "_heap", "_slot_ns", "_slots")

    def __init__(self, slot_ns: int = SLOT_NS) -> None:
        self._slot_ns = slot_ns
        self._due: dict[T, int] = {}  # the slot of each item
        self._slots: dict[int, dict[T, None]] = {}  # an emptied slot stays until it surfaces in the heap
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, item: T) -> bool:
        return item in self._due

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._due))

    def put(self, item: T, due_ns: int) -> bool:
        """Enter an item, or move it. True when it is now the first to come due."""
        slot, before = due_ns // self._slot_ns, self._due.get(item)
        entries = self._slot(slot)
        if before != slot:
            entries[item] = None
            self._due[item] = slot
            entries[item] = None  # again: a `drop` by another thread may have come in between
            self._forget(item, before)
        return self._heap[0] == slot and len(entries) == 1

    def put_all(self, items: Sequence[T], due_ns: int) -> None:
        """Enter many items that are due together and are not entered yet."""
        slot = due_ns // self._slot_ns
        self._slot(slot).update(dict.fromkeys(items))
        self._due.update(dict.fromkeys(items, slot))

    def drop(self, item: T) -> bool:
        """Withdraw an item. False when it was not there."""
        slot = self._due.pop(item, None)
        if slot is None:
            return False
        self._forget(item, slot)
        self._due.pop(item, None)  # again: its owner may have entered it in between, and its entry is gone
        return True

    def next_due_ns(self) -> int | None:
        """When the next slot comes due, or None when no item is entered."""
        while self._heap and not self._slots.get(self._heap[0]):
            self._slots.pop(self._heap[0], None)
            heapq.heappop(self._heap)
        return self._heap[0] * self._slot_ns if self._heap else None

    def peek_ns(self) -> int | None:
        """The same, without changing anything: for threads that do not own the queue."""
        heap = self._heap[:1]
        if heap and not self._slots.get(heap[0]):
            heap = sorted(slot for slot, entries in list(self._slots.items()) if entries)[:1]
        return heap[0] * self._slot_ns if heap else None

    def pop_due(self, now_ns: int, most: int | None = None) -> list[T]:
        """Take out the items that are due by now, earliest slot first, at most `most` items."""
        result: list[T] = []
        while (due := self.next_due_ns()) is not None and due <= now_ns:
            slot = self._heap[0]
            entries = self._slots.get(slot, {})
            room = len(entries) if most is None else most - len(result)
            if room <= 0:
                break
            for item in list(entries)[:room]:
                if self._due.get(item) == slot:
                    result.append(item)
                    self._due.pop(item, None)
                entries.pop(item, None)
        return result

    def _slot(self, slot: int) -> dict[T, None]:
        if slot not in self._slots:
            heapq.heappush(self._heap, slot)
        return self._slots.setdefault(slot, {})

    def _forget(self, item: T, slot: int | None) -> None:
        entries = None if slot is None else self._slots.get(slot)
        if entries is not None:
            entries.pop(item, None)
