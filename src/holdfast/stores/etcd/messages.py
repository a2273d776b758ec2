"""Messages of etcd's JSON gateway: parts of transactions, and what their answers mean. Pure.

Keys and values travel as base64, 64-bit numbers as text, and fields with a zero value are left out. An answer of any
other form raises `KeyError`, `ValueError`, `TypeError`, `AttributeError` or `StopIteration`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

Message: TypeAlias = Mapping[str, Any]


class KeyValue(NamedTuple):
    """A stored key."""

    key: bytes
    value: bytes
    created: int  # the revision of the transaction that created it
    modified: int  # the revision of the last transaction that wrote it
    lease: int  # 0: none


class OperationAnswer(NamedTuple):
    """The answer to one operation of a transaction."""

    found: tuple[KeyValue, ...] = ()
    number: int = 0  # of keys in the range
    succeeded: bool = False  # of a nested transaction

    @property
    def first(self) -> KeyValue | None:
        """The only key that was requested; None: there is no such key."""
        return self.found[0] if self.found else None


class TransactionAnswer(NamedTuple):
    """The answer to a transaction."""

    succeeded: bool
    revision: int
    cluster: str
    parts: tuple[OperationAnswer, ...]


def range_end(key: bytes) -> bytes:
    """The end of the range of all keys that begin with `key`."""
    return key[:-1] + bytes([key[-1] + 1])


def text(data: bytes) -> str:
    """Bytes as the gateway takes them."""
    return b64encode(data).decode()


def same_value(key: bytes, value: bytes) -> Message:
    """True if the key exists with this value."""
    return {"key": text(key), "target": "VALUE", "result": "EQUAL", "value": text(value)}


def unchanged(seen: KeyValue) -> Message:
    """True if nothing has written or deleted the key since it was read."""
    return {"key": text(seen.key), "target": "MOD", "result": "EQUAL", "mod_revision": str(seen.modified)}


def created(key: bytes, result: Literal["EQUAL", "GREATER"], revision: int, *, whole: bool = False) -> Message:
    """Compare the revision that created the key, which is 0 for a key that does not exist.

    `whole`: of all keys that begin with it. Each of them must compare; a range without keys counts as one with 0.
    """
    compare = {"key": text(key), "target": "CREATE", "result": result, "create_revision": str(revision)}
    return {**compare, "range_end": text(range_end(key))} if whole else compare


def get(key: bytes) -> Message:
    """Read one key."""
    return {"request_range": {"key": text(key)}}


def count(prefix: bytes) -> Message:
    """Count the keys that begin with `prefix`."""
    return {"request_range": {"key": text(prefix), "range_end": text(range_end(prefix)), "count_only": True}}


def created_before(prefix: bytes, revision: int, *, limit: int = 0) -> Message:
    """The names of keys that begin with `prefix` and are older than the revision, the newest first."""
    window = {"key": text(prefix), "range_end": text(range_end(prefix)), "max_create_revision": str(revision - 1)}
    order = {"sort_target": "CREATE", "sort_order": "DESCEND", "limit": str(limit), "keys_only": True}
    return {"request_range": {**window, **order}}


def put(key: bytes, value: bytes, lease: int) -> Message:
    """Write a key that ends with a lease. 0: it stays."""
    return {"request_put": {"key": text(key), "value": text(value), "lease": str(lease)}}


def move(key: bytes, lease: int) -> Message:
    """Let a key end with another lease. Its value stays."""
    return {"request_put": {"key": text(key), "ignore_value": True, "lease": str(lease)}}


def delete(key: bytes) -> Message:
    """Delete one key."""
    return {"request_delete_range": {"key": text(key)}}


def transaction(
    compare: Sequence[Message], success: Sequence[Message], failure: Sequence[Message] = ()
) -> dict[str, Sequence[Message]]:
    """If all comparisons are true do the first, else the second."""
    return {"compare": compare, "success": success, "failure": failure}


def nested(compare: Sequence[Message], success: Sequence[Message], failure: Sequence[Message] = ()) -> Message:
    """A transaction as an operation of another one."""
    return {"request_txn": transaction(compare, success, failure)}


def read_range(response: Message) -> tuple[KeyValue, ...]:
    """What a range of its own was answered with."""
    int(response["header"]["revision"])
    return _read_key_values(response)


def _read_key_values(response: Message) -> tuple[KeyValue, ...]:
    """The keys that a range was answered with."""
    return tuple(
        KeyValue(
            b64decode(each["key"], validate=True),
            b64decode(each.get("value", ""), validate=True),
            int(each["create_revision"]),
            int(each["mod_revision"]),
            int(each.get("lease", 0)),
        )
        for each in response.get("kvs", ())
    )


def is_answer(response: Message, success: Sequence[Message], failure: Sequence[Message]) -> bool:
    """Whether a transaction of these operations can have this answer: one part for each, of its kind."""
    operations = success if response.get("succeeded") is True else failure
    kinds = [next(iter(each)).replace("request", "response", 1) for each in operations]
    return [next(iter(each)) for each in response.get("responses", ())] == kinds


def always_writes(compare: Sequence[Message], success: Sequence[Message]) -> bool:
    """Whether a transaction that succeeds has certainly written: a put or delete after a comparison of its key."""
    return bool(compare) and any(kind in success[0] for kind in ("request_put", "request_delete_range"))


def read_outcome(response: Message) -> TransactionAnswer:
    """What a transaction was answered with."""
    header = response["header"]
    parts = tuple(_read_part(each) for each in response.get("responses", ()))
    return TransactionAnswer(
        response.get("succeeded") is True, int(header["revision"]), str(header["cluster_id"]), parts
    )


def _read_part(part: Message) -> OperationAnswer:
    if "response_range" in part:
        found = part["response_range"]
        return OperationAnswer(_read_key_values(found), int(found.get("count", 0)))
    return OperationAnswer(succeeded=part.get("response_txn", {}).get("succeeded") is True)
