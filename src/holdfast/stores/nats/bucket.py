"""The bucket of the leases in JetStream: its names, its settings, and what makes one unusable. Pure.

A bucket of NATS's key-value store is a stream with one subject for each key. The first sequence of a bucket that is
created here is its creator's clock in microseconds: sequences are fences, so those of a bucket that replaces a deleted
one start above all fences of the old one, unless that wrote more than a million messages a second or the creator's
clock is behind. Forced releases are recorded in a stream of their own, which keeps the newest ten thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

AUDIT_MAX: Final = 10_000
FIRST_SEQUENCE_LEAST: Final = 10**15  # microseconds: the year 2001

_WINDOW_NS: Final = 120 * 10**9


@dataclass(frozen=True, slots=True)
class BucketNames:
    """All names follow from that of the bucket."""

    bucket: str

    @property
    def stream(self) -> str:
        """The stream of the leases."""
        return f"KV_{self.bucket}"

    @property
    def subjects(self) -> str:
        """Before the name of each key."""
        return f"$KV.{self.bucket}."

    @property
    def audit_stream(self) -> str:
        """The stream of the forced releases."""
        return f"KV_{self.bucket}_audit"

    @property
    def audit_subjects(self) -> str:
        """Before the fence of each forced release."""
        return f"$KV.{self.bucket}_audit."

    @property
    def hints(self) -> str:
        """Before the name of each key, for the waiters. No stream keeps these."""
        return f"holdfast.free.{self.bucket}."


def lease_stream(names: BucketNames, replicas: int, wall_ns: int) -> dict[str, Any]:
    """The settings of the stream of the leases."""
    return {
        **_stream(names.stream, names.subjects, replicas),
        "discard": "new",
        "allow_msg_ttl": True,
        "first_seq": max(FIRST_SEQUENCE_LEAST, wall_ns // 1000),
    }


def audit_stream(names: BucketNames, replicas: int) -> dict[str, Any]:
    """The settings of the stream of the forced releases."""
    return {**_stream(names.audit_stream, names.audit_subjects, replicas), "discard": "old", "max_msgs": AUDIT_MAX}


def _stream(name: str, subjects: str, replicas: int) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": [f"{subjects}>"],
        "retention": "limits",
        "storage": "file",
        "max_msgs_per_subject": 1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_consumers": -1,
        "num_replicas": replicas,
        "duplicate_window": _WINDOW_NS,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }


def problem(config: Mapping[str, Any], names: BucketNames, replicas: int) -> str | None:
    """Why a bucket that exists cannot keep leases, and the fix. None: it can."""
    if config.get("subjects") != [f"{names.subjects}>"] or config.get("mirror") or config.get("sources"):
        return "is no bucket of its own (other subjects, a mirror or sources); url option bucket: use another one"
    if not config.get("allow_msg_ttl"):
        return (
            "does not allow a TTL for each message; use a NATS server from 2.11 on, and let Holdfast create the bucket"
        )
    if config.get("max_age"):
        return "deletes keys after a maximum age, held ones too; remove its max age (ttl)"
    if any(config.get(limit, -1) > 0 for limit in ("max_msgs", "max_bytes")) and config.get("discard") != "new":
        return "discards old keys when it is full, held ones too; remove its limits, or set discard to new"
    if config.get("retention", "limits") != "limits":
        return "does not keep messages until they are replaced; url option bucket: use another one"
    if config.get("storage") != "file":
        return "is kept in memory and would be lost with its server; create it with file storage"
    if config.get("first_seq", 0) < FIRST_SEQUENCE_LEAST:
        return (
            "was not created by Holdfast: its sequences start at 1, so fences would go back if it is created again; "
            "delete it while nothing is locked, and Holdfast creates it"
        )
    found = config.get("num_replicas", 1)
    if found < replicas:
        return f"has {found} replicas, and the url asks for {replicas}; change the bucket, or url option replicas"
    return None
