"""Names and values of the keys that the store writes, and what operators are shown of them.

    <prefix>/lock/<name>                the lease, as JSON that begins with the owner; it ends with its etcd lease
    <prefix>/fence                      what is added to revisions to make fences
    <prefix>/turn/<name> NUL <ticket>   a waiter of a fair lock
    <prefix>/wait/<name> NUL <id>       any other waiter
    <prefix>/audit/<time>-<id>          a forced release, as JSON

A NUL stands in no lock name, so the waiters of one lock are one range of keys. A value has no secret in it: the proof
of ownership is a hash of the token. A lease of any other form was written by another program.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, NamedTuple

from holdfast.types import AcquireRequest, AuditRecord, Holding

FOREIGN_OWNER: Final = "another program"
LOCKS: Final = "lock/"
TURNS: Final = "turn/"
WAITERS: Final = "wait/"
AUDIT: Final = "audit/"
FENCE: Final = "fence"

_MARK_CHARS: Final = 6  # of the proof; the same as `types.fingerprint`


class KeyNames:
    """The names of keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        root = f"{prefix}/"
        self.fence = f"{root}{FENCE}".encode()
        self.locks = f"{root}{LOCKS}".encode()
        self.audit = f"{root}{AUDIT}".encode()
        self._turns = f"{root}{TURNS}".encode()
        self._waiters = f"{root}{WAITERS}".encode()

    def lock(self, name: str) -> bytes:
        """The lease of a lock."""
        return self.locks + name.encode()

    def name(self, lock: bytes) -> str | None:
        """The lock whose lease this is; None: of no lock of ours."""
        try:
            return lock.removeprefix(self.locks).decode()
        except UnicodeDecodeError:
            return None

    def turns(self, name: str) -> bytes:
        """What the tickets of a fair lock begin with."""
        return self._turns + name.encode() + b"\0"

    def waiters(self, name: str) -> bytes:
        """What other waiters begin with."""
        return self._waiters + name.encode() + b"\0"


class LockValue(NamedTuple):
    """What a lease says about itself."""

    owner: str
    family: str
    granted_wall_ns: int
    base: int
    proof: str  # empty: it was released, but is kept for a minimum time

    def fence(self, created: int) -> int:
        """The fence of a lease that was created at this revision."""
        return self.base + created

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(dict(zip(_FIELDS, self, strict=True)), ensure_ascii=False).encode()


_FIELDS: Final = ("owner", "family", "granted_ns", "base", "proof")


def proof_of(token: str) -> str:
    """What shows that a lease belongs to a token, and does not reveal it."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_value(ask: AcquireRequest, wall_ns: int, base: int) -> bytes:
    """The lease of a new grant."""
    return LockValue(ask.owner, ask.family, wall_ns, base, proof_of(ask.token)).encode()


def decode(value: bytes) -> LockValue | None:
    """Read a lease; None: another program wrote it."""
    try:
        fields = json.loads(value)
        owner, family, granted, base, proof = (fields[name] for name in _FIELDS)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = isinstance(owner, str) and isinstance(family, str) and isinstance(proof, str)
    if not texts or type(granted) is not int or type(base) is not int or base < 0:
        return None
    return LockValue(owner, family, granted, base, proof)


def proves(value: bytes, token: str) -> bool:
    """Whether a lease belongs to a token."""
    state = decode(value)
    return state is not None and state.proof == proof_of(token)


def holding(name: str, value: bytes, created: int, remaining_ns: int | None, waiters: int) -> Holding:
    """What is known about a key."""
    state = decode(value)
    if state is None:
        mark = hashlib.sha256(value).hexdigest()[:_MARK_CHARS]
        return Holding(name, FOREIGN_OWNER, None, "", None, remaining_ns, mark, waiters)
    fence, mark = state.fence(created), state.proof[:_MARK_CHARS]
    return Holding(name, state.owner, fence, state.family, state.granted_wall_ns, remaining_ns, mark, waiters)


def encode_audit(record: AuditRecord, base: int) -> bytes:
    """A forced release as it is stored. Its fence follows from the revision of its key."""
    return json.dumps(
        {
            "wall_ns": record.wall_ns,
            "action": record.action,
            "key": record.key,
            "actor": record.actor,
            "reason": record.reason,
            "owner": record.previous_owner,
            "previous_fence": record.previous_fence,
            "base": base,
        },
        ensure_ascii=False,
    ).encode()


def decode_audit(value: bytes, created: int) -> AuditRecord:
    """Read an entry. Raises `ValueError`, `KeyError` or `TypeError` for what is not one of ours."""
    entry: dict[str, Any] = json.loads(value)
    previous = entry["previous_fence"]
    return AuditRecord(
        wall_ns=int(entry["wall_ns"]),
        action=str(entry["action"]),
        key=str(entry["key"]),
        actor=str(entry["actor"]),
        reason=str(entry["reason"]),
        previous_owner=str(entry["owner"]),
        previous_fence=None if previous is None else int(previous),
        fence=int(entry["base"]) + created,
    )
