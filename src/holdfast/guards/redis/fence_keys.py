"""Where Redis keeps the fence of a key: in a side key of the same hash slot, so that one script may touch both.

    key              hash slot of            fence, with the usual prefix
    invoice:42       the whole key           holdfast:fence:{invoice:42}
    cart:{7}:items   7                       holdfast:fence:@cart:{7}:items
    odd{key          the whole key           holdfast:fence:{odd{key}
    odd}key, x{}y    the whole key           refused: no name that contains it whole can have its slot

Promises: one fence for each key, never the same for two, and always in the key's slot. The rule of the slots is that of
the Redis Cluster specification: what is between the first `{` and the first `}` after it, if that is not empty, and
the whole key otherwise. Keys are bytes here, as the client sends them. Nothing here talks to a server.
"""

from __future__ import annotations

import json
from typing import Final

from holdfast.errors import BadInput

PREFIX: Final = "holdfast:fence:"
PREFIX_BYTES_MAX: Final = 200


def slot_part(key: bytes) -> bytes:
    """The part of a key that decides its slot."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            return key[begin + 1 : end]
    return key


class FenceNames:
    """The names of the fences under one prefix."""

    __slots__ = ("_prefix", "prefix")

    def __init__(self, prefix: object = PREFIX) -> None:
        if not isinstance(prefix, str) or not prefix or not prefix.isprintable():
            raise BadInput("prefix", f"{prefix!r} is not a prefix", f"give printable text such as {PREFIX!r}")
        if "{" in prefix or "}" in prefix:
            raise BadInput("prefix", f"{prefix!r} contains braces", "leave them out: they would decide the hash slot")
        self.prefix = prefix
        self._prefix = _encoded("prefix", prefix)
        if len(self._prefix) > PREFIX_BYTES_MAX:
            raise BadInput("prefix", "is too long", f"use at most {PREFIX_BYTES_MAX} bytes")

    def of_key(self, key: bytes) -> bytes:
        """The fence of a data key, or `BadInput` if none can lie in its slot."""
        if not key:
            raise BadInput("key", "is empty", "give a name such as 'invoice:42'")
        if key.startswith(self._prefix):
            raise BadInput("key", "is the name of a fence, not of data", "use another name, or another prefix")
        if slot_part(key) != key:
            # The prefix has no brace, so the first pair is still the key's own. The mark keeps `{a}` apart from `a`.
            return self._prefix + b"@" + key
        if b"}" in key:
            raise BadInput(
                "key",
                f"{key.decode(errors='replace')!r} has a closing brace outside a hash tag, so that no fence can be "
                "kept in its hash slot",
                "leave the brace out, or give the key a tag: 'a{b}c'",
            )
        return self._prefix + b"{" + key + b"}"

    def of_channel(self, channel: str, lock: str) -> bytes:
        """The fence of what one lock's holders publish on a channel. Locks share channels, and their fences differ."""
        return self._prefix + b"#" + _pair("channel", channel, lock)

    def of_record(self, place: str, resource: str) -> bytes:
        """The fence of a thing that is not in Redis."""
        return self._prefix + _pair("resource", place, resource)


def _pair(field: str, one: str, other: str) -> bytes:
    return _encoded(field, json.dumps([one, other], ensure_ascii=False, separators=(",", ":")))


def _encoded(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadInput(
            field, f"{text!r} cannot be encoded", "remove what is no character, such as lone halves"
        ) from None
