"""The messages of a lease bucket: what each says about its key. Pure.

A key is one subject, and the last message on it is its state. The message of a held key is JSON that a person can read
(`nats kv get BUCKET KEY`): the owner, the family, the TTL, and a digest of the token instead of the token. A message
with the header `KV-Operation`, or no message at all, means that the key is free.

    held        {"v":1,"owner":…,"family":…,"ttl_ns":…,"granted":…,"until":…,"mark":digest,"fence":…}
    kept        the same with an empty mark: released, but kept for a minimum time
    free        header KV-Operation: PURGE, and {"by":digest} of the token that released it
    forced      header KV-Operation: PURGE, and the audit record of an operator who broke the lease

The fence of a grant is the sequence of its message, which nothing can know before it is stored. So the first message of
a grant has no `fence`, and each later one names the sequence of the first. `until` is the deadline by the wall clock
of the holder's host, for people: no decision reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.types import NS, AcquireRequest, AuditRecord

FOREIGN_OWNER: Final = "another program"
OPERATION: Final = "KV-Operation"
DELETED: Final = "PURGE"  # of the two operations of a bucket, both of which leave a key without a value
_SERVER_MARKER: Final = "Nats-Marker-Reason"  # left by the server when it removes the last message of a subject
_VERSION: Final = 1
_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/")


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A key that is held, or kept for a minimum time."""

    owner: str
    family: str
    ttl_ns: int
    granted_ns: int  # the wall clock of the host that acquired it
    mark: str  # the digest of the token; empty: it was released, and is kept
    fence: int | None  # None: the sequence of this very message


@dataclass(frozen=True, slots=True)
class Free:
    """A key that was released."""

    by: str = ""  # the digest of the token that released it
    forced: AuditRecord | None = None  # the record of the operator who broke the lease; its fence is the sequence


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value of another program. It holds the key, and does not expire."""

    mark: str


Content = HeldValue | Free | Foreign


def mark_of(token: str) -> str:
    """The digest that stands for a token in the bucket. Its beginning is the fingerprint that people see."""
    return hashlib.sha256(token.encode()).hexdigest()


def held(ask: AcquireRequest, wall_ns: int) -> HeldValue:
    """The first message of a grant."""
    return HeldValue(ask.owner, ask.family, ask.ttl_ns, wall_ns, mark_of(ask.token), None)


def encoded(content: HeldValue | Free, wall_ns: int) -> bytes:
    """The data of a message."""
    if isinstance(content, Free):
        found: dict[str, Any] = {"by": content.by} if content.by else {}
        if (forced := content.forced) is not None:
            found["forced"] = _record(forced)
        return json.dumps(found, separators=(",", ":")).encode() if found else b""
    words: dict[str, Any] = {
        "v": _VERSION,
        "owner": content.owner,
        "family": content.family,
        "ttl_ns": content.ttl_ns,
        "granted": content.granted_ns,
        "until": datetime.fromtimestamp((wall_ns + content.ttl_ns) / NS, UTC).isoformat(timespec="milliseconds"),
        "mark": content.mark,
    }
    if content.fence is not None:
        words["fence"] = content.fence
    return json.dumps(words, separators=(",", ":")).encode()


def decoded(data: bytes, headers: Mapping[str, str]) -> Content:
    """What a message says. What is none of ours is `Foreign`, unless its headers say that the key was deleted."""
    try:
        found = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        found = None
    if OPERATION in headers or _SERVER_MARKER in headers:
        return _free(found)
    return _held(found) or Foreign(hashlib.sha256(data).hexdigest())


def _free(found: Any) -> Free:
    if not isinstance(found, dict):
        return Free()
    by = found.get("by")
    return Free(by if isinstance(by, str) else "", audit_record(found.get("forced"), 0))


def _held(found: Any) -> HeldValue | None:
    match found:
        case {
            "v": 1,
            "owner": str(owner),
            "family": str(family),
            "ttl_ns": int(ttl_ns),
            "granted": int(granted_ns),
            "mark": str(mark),
        } if 0 < ttl_ns <= FENCE_MAX:
            fence = found.get("fence")
            if fence is None or (type(fence) is int and 0 < fence <= FENCE_MAX):
                return HeldValue(owner, family, ttl_ns, granted_ns, mark, fence)
    return None


def _record(record: AuditRecord) -> dict[str, Any]:
    return {
        "wall_ns": record.wall_ns,
        "action": record.action,
        "key": record.key,
        "actor": record.actor,
        "reason": record.reason,
        "owner": record.previous_owner,
        "previous": record.previous_fence,
    }


def audit_data(record: AuditRecord) -> bytes:
    """The data of a record in the audit stream."""
    return json.dumps({**_record(record), "fence": record.fence}, separators=(",", ":")).encode()


def audit_record(found: Any, fence: int) -> AuditRecord | None:
    """A record from its JSON. `fence`: 0 to take the one that it names. None: it is no record."""
    match found:
        case {
            "wall_ns": int(wall_ns),
            "action": str(action),
            "key": str(key),
            "actor": str(actor),
            "reason": str(reason),
            "owner": str(owner),
            "previous": int() | None as previous,
        }:
            named = found.get("fence")
            number = fence or (named if type(named) is int else 0)
            return AuditRecord(wall_ns, action, key, actor, reason, owner, previous, number)
    return None


def key_token(key: str) -> str:
    """A lock name as one part of a subject: what is not safe there is `=` and two hexadecimal digits.

    Sorting and comparing are done with the name itself, so this needs to be reversible and nothing else.
    """
    data = key.encode("utf-8", "surrogatepass")
    return "".join([chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in data])


def key_of(escaped: str) -> str | None:
    """The lock name of such a part. None: no name has this form."""
    parts = escaped.split("=")
    data = bytearray(parts[0].encode())
    try:
        for part in parts[1:]:
            data.append(int(part[:2], 16))
            data += part[2:].encode()
        key = data.decode("utf-8", "surrogatepass")
    except ValueError:
        return None
    return key if key_token(key) == escaped else None
