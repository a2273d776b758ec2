"""Slots of a Redis Cluster. Pure.

A key belongs to one of 16384 slots, and all keys of one script must be in one. What a store keeps for a lock is named
after it in braces, so it is in the lock's slot. The fence counter and the audit stream of a slot are named after a
number in braces: the smallest one that is in the slot. That name is a part of the wire format.
"""

from __future__ import annotations

from binascii import crc_hqx
from itertools import count
from typing import Final

SLOTS: Final = 16_384


def slot_of(key: str) -> int:
    """The slot of a key: of the part in its first braces, if there is one."""
    data = key.encode("utf-8", "surrogatepass")
    start = data.find(b"{")
    if start >= 0:
        end = data.find(b"}", start + 1)
        if end > start + 1:
            data = data[start + 1 : end]
    return crc_hqx(data, 0) % SLOTS


_tags: dict[int, str] = {}
_tried = count()


def tag_of(slot: int) -> str:
    """The smallest number that is in a slot. Each number is tried once, in order, so the first one found is that."""
    while (tag := _tags.get(slot)) is None:
        number = str(next(_tried))
        _tags.setdefault(slot_of(number), number)
    return tag
