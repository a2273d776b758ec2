"""The requests of the store to JetStream, and what their answers say about the messages of a bucket.

Promises: a write names the sequence that it replaces, and is stored, refused, or of unknown outcome. A stored message
is acknowledged by the leader of the stream when a majority of its replicas has it. Reads are answered by the leader as
well, but may be old: a leader that was cut off does not know that it is none any more. So no caller may conclude from a
read that it has a lease.

A bucket that is not there is created. One that cannot keep leases is refused (`Misconfigured`).

Clock: the link's, for deadlines; the servers' timestamps are passed on.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from holdfast.core.ports import Clock
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.stores.nats.acks import Outgoing
from holdfast.stores.nats.bucket import BucketNames, audit_stream, lease_stream, problem
from holdfast.stores.nats.link import NatsLink
from holdfast.stores.nats.revisions import ServerTime
from holdfast.stores.nats.values import (
    DELETED,
    OPERATION,
    Content,
    Free,
    HeldValue,
    audit_data,
    audit_record,
    decoded,
    encoded,
    key_of,
    key_token,
)
from holdfast.types import NS, AuditRecord

CLEANUP_NS: Final = 86_400 * NS  # the server deletes a lease that expired so long ago
FREE_TTL_S: Final = 10  # the server forgets a released key after that; without its message the key is free as well
SERVER_TIME_NS: Final = 60 * NS  # how long the time of the servers is counted on from one reading

_NO_MESSAGE: Final = 10037
_NO_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058
_WRONG_LAST: Final = (10071, 10164)
_NOT_ENABLED: Final = (10039, 10076)
_SECONDS: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BucketMessage(NamedTuple):
    """The last message of a key."""

    seq: int
    content: Content
    stored_ns: int  # the timestamp of the server


class Write(NamedTuple):
    """A message for a key, to be stored if the last one has this sequence. 0: if there is none."""

    key: str
    expected: int
    content: HeldValue | Free


class BucketRequests:
    """The requests about one bucket, over the link of one event loop."""

    def __init__(self, link: NatsLink, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self.names = BucketNames(link.address.bucket)
        self.server_time: ServerTime | None = None
        self._checked = False

    async def prepare(self, deadline_ns: int) -> None:
        """See that the bucket is there and can keep leases. Asks only once, and again when the bucket has gone."""
        if not self._checked:
            await self._check(deadline_ns)

    async def ping(self, deadline_ns: int) -> ServerTime:
        """Ask the leader of the stream for its time."""
        try:
            await self._info(deadline_ns)
        except _Refused as refused:
            raise self._refusal(refused.error) from None
        if self.server_time is None:
            raise self._garbled("a question for its time")
        return self.server_time

    async def info(self, deadline_ns: int) -> dict[str, Any]:
        """The settings and the state of the bucket, whatever they are. A bucket that is not there is created."""
        try:
            return await self._info(deadline_ns)
        except _Refused as refused:
            if refused.code != _NO_STREAM:
                raise self._refusal(refused.error) from None
        self._checked = False
        await self._check(deadline_ns)
        return await self.info(deadline_ns)

    async def _info(self, deadline_ns: int) -> dict[str, Any]:
        info = await self._asked(f"$JS.API.STREAM.INFO.{self.names.stream}", {}, deadline_ns)
        self._time_of(info)
        return info

    async def _check(self, deadline_ns: int) -> None:
        replicas = self._link.address.replicas
        try:
            info = await self._info(deadline_ns)
        except _Refused as refused:
            if refused.code != _NO_STREAM:
                raise self._refusal(refused.error) from None
            wanted = lease_stream(self.names, replicas, self._clock.now().wall)
            info = await self._create(self.names.stream, wanted, deadline_ns)
        trouble = problem(info.get("config") or {}, self.names, replicas)
        if trouble is not None:
            raise Misconfigured(f"nats at {self._link.address}: the bucket {self.names.bucket} {trouble}")
        self._checked = True

    async def _create(self, stream: str, wanted: dict[str, Any], deadline_ns: int) -> dict[str, Any]:
        try:
            return await self._asked(f"$JS.API.STREAM.CREATE.{stream}", wanted, deadline_ns)
        except _Refused as refused:
            if refused.code != _NAME_IN_USE:  # another process has created it with other settings
                raise self._refusal(refused.error) from None
        return await self._info(deadline_ns) if stream == self.names.stream else {}

    # Messages.

    async def write_all(self, writes: Sequence[Write], deadline_ns: int) -> list[int | BackendError | None]:
        """Store some messages in one round trip. Of each: its sequence, None if it was refused, or what went wrong."""
        wall_ns = self._clock.now().wall
        answers = await self._link.ask_all([self._outgoing(write, wall_ns) for write in writes], deadline_ns)
        return [self._stored(answer) for answer in answers]

    async def write(self, write: Write, deadline_ns: int) -> int | None:
        """Store one message. Its sequence; None: refused, because the last message of the key is another one."""
        (answer,) = await self.write_all([write], deadline_ns)
        if isinstance(answer, BackendError):
            raise answer
        return answer

    def _outgoing(self, write: Write, wall_ns: int) -> Outgoing:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(write.expected)}
        content = write.content
        if isinstance(content, Free):
            headers[OPERATION] = DELETED
            if content.forced is None:  # a record that was not copied yet must not be deleted
                headers["Nats-TTL"] = str(FREE_TTL_S)
        else:
            headers["Nats-TTL"] = str(-(-(content.ttl_ns + CLEANUP_NS) // NS))
        return Outgoing(self.names.subjects + key_token(write.key), encoded(content, wall_ns), headers)

    def _stored(self, answer: dict[str, Any] | BackendError) -> int | BackendError | None:
        if isinstance(answer, BackendError):
            if isinstance(answer, Unavailable):  # perhaps the stream was deleted
                self._checked = False
            return answer
        error = answer.get("error")
        if isinstance(error, dict):
            if error.get("err_code") in _WRONG_LAST:
                return None
            return self._refusal(error)
        seq = answer.get("seq")
        if error is None and type(seq) is int and seq > 0 and answer.get("stream") == self.names.stream:
            return seq
        return self._garbled("a write")

    async def read(self, key: str, deadline_ns: int) -> BucketMessage | None:
        """The last message of a key, and now and then the time of the servers in the same round trip. None: none."""
        asks = [self._reading(self.names.subjects + key_token(key))]
        now_ns = self._clock.now().mono
        if self.server_time is None or now_ns - self.server_time.read_ns > SERVER_TIME_NS:
            asks.append(Outgoing(f"$JS.API.STREAM.INFO.{self.names.stream}", b"", {}))
        answers = await self._link.ask_all(asks, deadline_ns)
        if len(answers) > 1 and isinstance(answers[1], dict):
            self._time_of(answers[1])
        return self._message(answers[0])

    async def read_all(self, keys: Sequence[str], deadline_ns: int) -> list[BucketMessage | None]:
        """The last messages of some keys, in one round trip."""
        if not keys:
            return []
        asks = [self._reading(self.names.subjects + key_token(key)) for key in keys]
        return [self._message(answer) for answer in await self._link.ask_all(asks, deadline_ns)]

    def _reading(self, subject: str) -> Outgoing:
        return Outgoing(
            f"$JS.API.STREAM.MSG.GET.{self.names.stream}", b'{"last_by_subj":"' + subject.encode() + b'"}', {}
        )

    def _message(self, answer: dict[str, Any] | BackendError) -> BucketMessage | None:
        found = self._found(answer)
        if found is None:
            return None
        seq, data, headers, stored_ns = found
        return BucketMessage(seq, decoded(data, headers), stored_ns)

    def _found(self, answer: dict[str, Any] | BackendError) -> tuple[int, bytes, dict[str, str], int] | None:
        if isinstance(answer, BackendError):
            raise answer
        error = answer.get("error")
        if isinstance(error, dict):
            if error.get("err_code") == _NO_MESSAGE:
                return None
            if error.get("err_code") == _NO_STREAM:
                self._checked = False
            raise self._refusal(error)
        try:
            found = answer["message"]
            data = base64.b64decode(found.get("data") or "", validate=True)
            headers = _headers(base64.b64decode(found.get("hdrs") or "", validate=True))
            stored_ns = _wall_ns(found["time"])
            if type(found["seq"]) is int and found["seq"] > 0 and stored_ns is not None:
                return found["seq"], data, headers, stored_ns
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        raise self._garbled("a read")

    async def keys(self, deadline_ns: int) -> list[str]:
        """The names of all keys that have a message."""
        names: dict[str, None] = {}
        offset = 0
        while True:
            request = {"subjects_filter": f"{self.names.subjects}>", "offset": offset}
            try:
                info = await self._asked(f"$JS.API.STREAM.INFO.{self.names.stream}", request, deadline_ns)
            except _Refused as refused:
                raise self._refusal(refused.error) from None
            self._time_of(info)
            state = info.get("state")
            subjects = (state.get("subjects") or {}) if isinstance(state, dict) else {}
            for subject in subjects:
                key = key_of(subject.removeprefix(self.names.subjects))
                if key:
                    names[key] = None
            offset += len(subjects)
            total = info.get("total")
            if not subjects or type(total) is not int or offset >= total:
                return list(names)

    # Forced releases.

    async def record(self, record: AuditRecord, deadline_ns: int) -> None:
        """Copy the record of a forced release to the audit stream. One that is there already is not written again."""
        headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
        message = Outgoing(f"{self.names.audit_subjects}{record.fence}", audit_data(record), headers)
        for again in (False, True):
            (answer,) = await self._link.ask_all([message], deadline_ns)
            if isinstance(answer, Unavailable) and not again:  # no stream listens there
                wanted = audit_stream(self.names, self._link.address.replicas)
                await self._create(self.names.audit_stream, wanted, deadline_ns)
                continue
            if isinstance(answer, BackendError):
                raise answer
            error = answer.get("error")
            if isinstance(error, dict) and error.get("err_code") not in _WRONG_LAST:
                raise self._refusal(error)
            return

    async def audit(self, limit: int, deadline_ns: int) -> list[AuditRecord]:
        """The newest records of forced releases, newest first."""
        stream = self.names.audit_stream
        try:
            state = (await self._asked(f"$JS.API.STREAM.INFO.{stream}", {}, deadline_ns)).get("state") or {}
        except _Refused as refused:
            if refused.code == _NO_STREAM:
                return []
            raise self._refusal(refused.error) from None
        first, last = int(state.get("first_seq") or 0), int(state.get("last_seq") or 0)
        numbers = range(last, max(first, last - limit + 1, 1) - 1, -1)
        asks = [Outgoing(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq":%d}' % number, {}) for number in numbers]
        if not asks:
            return []
        records: list[AuditRecord] = []
        for answer in await self._link.ask_all(asks, deadline_ns):
            found = self._found(answer)
            record = None if found is None else _audit_of(found[1])
            if record is not None:
                records.append(record)
        return records

    # Answers.

    async def _asked(self, subject: str, request: dict[str, Any], deadline_ns: int) -> dict[str, Any]:
        answer = await self._link.ask(subject, request, deadline_ns)
        error = answer.get("error")
        if isinstance(error, dict):
            raise _Refused(error)
        return answer

    def _time_of(self, info: Mapping[str, Any]) -> None:
        wall_ns = _wall_ns(info.get("ts"))
        if wall_ns is not None:
            self.server_time = ServerTime(wall_ns, self._clock.now().mono)

    def _refusal(self, error: Mapping[str, Any]) -> BackendError:
        """What a refusal of JetStream means."""
        where, text = f"nats at {self._link.address}", str(error.get("description", ""))[:200]
        code = error.get("code")
        if error.get("err_code") in _NOT_ENABLED:
            return Misconfigured(f"{where}: {text}; server: enable JetStream for the account of this user")
        if error.get("err_code") == _NO_STREAM:
            return Unavailable(f"{where}: the bucket {self.names.bucket} was deleted; the next request creates it")
        if type(code) is int and 400 <= code < 500:
            return Misconfigured(f"{where} refuses the request: {text}")
        return Unavailable(f"{where} cannot serve now: {text}")

    def _garbled(self, what: str) -> Timeout:
        return Timeout(
            f"nats at {self._link.address} sent an answer to {what} that makes no sense; it may have taken effect"
        )


class _Refused(Exception):
    """JetStream has refused a request of its API."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("description")))
        self.error = error
        self.code = error.get("err_code")


def _headers(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip()] = value.strip()
    return found


def _wall_ns(text: object) -> int | None:
    """A timestamp of a server (RFC 3339, in UTC)."""
    match = _SECONDS.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        since = datetime.fromisoformat(match[1]).replace(tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    return since // timedelta(seconds=1) * NS + int((match[2] or "0").ljust(9, "0"))


def _audit_of(data: bytes) -> AuditRecord | None:
    try:
        return audit_record(json.loads(data), 0)
    except (ValueError, RecursionError):
        return None
