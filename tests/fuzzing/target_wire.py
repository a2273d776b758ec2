"""What servers say: Redis replies to both clients, messages of a bus, answers of an HTTP server and of a Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any, Final

import nats.errors

from fuzzing.target import Target, parted, refused, whole
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BackendError, BadInput, HoldfastError
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.http import headers as http_headers
from holdfast.guards.http.client import Presenter
from holdfast.guards.messaging import headers as message_headers
from holdfast.ops.runbooks.evidence.metrics import MetricQuery, vector_of
from holdfast.ops.tuning import metrics as tuning_metrics
from holdfast.plane.bus.envelope import (
    Unreadable,
    from_wire,
    message_of,
    rows_of,
    unreadable_row,
    unreadable_wire,
    wire_of,
)
from holdfast.plane.model.records import PRIORITY_MAX
from holdfast.runtime.run_sync import run_now
from holdfast.stores.redis.asyncio_driver import MuxConnection
from holdfast.stores.redis.protocol import ConnectionBroken, ProtocolError, Reply, ReplyReader, check_handshake, garbled
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.redis.url import parse_redis_url
from holdfast.stores.waiter import WakeupSubscription
from holdfast.types import NS, AcquireRequest, Busy, Grant, Renewal

ADDRESS: Final = parse_redis_url("redis://localhost")
TOKEN: Final = "0123456789abcdef0123456789abcdef"
ASK: Final = AcquireRequest("job", TOKEN, "me@host:1/a", "billing", 30 * NS, None, 0)
HEAD: Final = "me@host:1/a hf1 billing"
RENEWALS: Final = [Renewal("job", TOKEN, f"{HEAD} 5 7 {TOKEN}", NS)] * 2
SOON: Final = NS


class Said:
    """A driver whose server says these bytes, whatever it is asked, and closes the connection after them."""

    def __init__(self, data: bytes) -> None:
        self._reader, self._data = ReplyReader(), data

    def deadline(self, timeout_ns: int) -> int:
        return timeout_ns

    async def call(self, packed: bytes, deadline_ns: int) -> Reply:
        try:
            if self._data:
                self._data, said = b"", self._data
                self._reader.feed(said)
            reply = self._reader.gets()
        except ProtocolError:
            raise garbled(ADDRESS, "a request") from None
        if reply is False:
            raise ConnectionBroken("it ended")
        return reply

    async def call_all(self, packed: bytes, count: int, deadline_ns: int) -> list[Reply]:
        replies = [await self.call(packed, deadline_ns)]
        try:
            while len(replies) < count:
                replies.append(await self.call(packed, deadline_ns))
        except BackendError:
            pass
        return replies

    async def distrust(self) -> None:
        pass

    async def close(self) -> None:
        pass


class NoEars:
    """No client waits in these tests."""

    async def open(self, timeout_ns: int) -> WakeupSubscription:
        raise AssertionError("no client waits here")

    async def close(self) -> None:
        pass


def redis_replies(data: bytes) -> None:
    """Everything a store asks, answered by chance."""
    for question in (_acquire, _renew, _release, _inspect, _holdings, _force, _audit, _rest):
        try:
            run_now(question(RedisStore(ADDRESS, Said(data), NoEars()), data))
        except BackendError as error:
            refused(error)


async def _acquire(store: RedisStore, data: bytes) -> None:
    for ask in (ASK, ASK._replace(ticket="t1", ticket_ttl_ns=NS)):
        found = await store.acquire(ask, SOON)
        if isinstance(found, Grant):
            whole(found.fence, 1, FENCE_MAX)
            said = rf"{re.escape(HEAD)} \d+ 0*{found.fence} {TOKEN}".encode()
            assert re.search(said, data), "a grant that the server did not send"
            assert found.token == TOKEN
        else:
            assert isinstance(found, Busy)
            assert found.remaining_ns is None or found.remaining_ns >= 0


async def _renew(store: RedisStore, data: bytes) -> None:
    answers = await store.renew_many(RENEWALS, SOON)
    assert len(answers) == 2
    assert all(each is None or type(each) is bool for each in answers)
    if any(answers):
        assert b"1" in data or b"OK" in data


async def _release(store: RedisStore, data: bytes) -> None:
    released = await store.release("job", TOKEN, f"{HEAD} 5 7 {TOKEN}", 0, SOON)
    assert type(released) is bool
    assert not released or b":1\r\n" in data or b":01" in data or b":+1" in data or b"1" in data


async def _inspect(store: RedisStore, data: bytes) -> None:
    found = await store.inspect("job", SOON)
    if found is not None:
        assert TOKEN not in repr(found)
        assert found.fence is None or found.fence >= 0


async def _holdings(store: RedisStore, data: bytes) -> None:
    for each in await store.holdings("", 10, SOON):
        assert each.fence is not None


async def _force(store: RedisStore, data: bytes) -> None:
    record = await store.force_release("job", "ops", "stuck", SOON)
    assert record is None or type(record.fence) is int


async def _audit(store: RedisStore, data: bytes) -> None:
    for record in await store.audit(10, SOON):
        assert type(record.wall_ns) is int


async def _rest(store: RedisStore, data: bytes) -> None:
    await store.ping(SOON)
    await store.leave("job", "t1", SOON)
    check_handshake(ADDRESS, await Said(data).call_all(b"", 2, 0))


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


_unix: Final = parse_redis_url("unix:///nowhere.sock")


def redis_link(data: bytes) -> None:
    """The connection that all tasks of a loop share, fed in pieces: each caller gets its own reply, or an error."""
    loop = _loop()
    link = MuxConnection(_unix, loop)
    link.connection_made(Wire())
    calls = [link.submit(b"x", count, link.now_ns() + 60 * NS) for count in (1, 2, 1)]
    calls[0].cancel()
    for piece in _pieces(data):
        link.data_received(piece)
    link.connection_lost(None)
    loop.run_until_complete(asyncio.sleep(0))
    expected = _all_of(data)
    for call in calls[1:]:
        assert call.done(), "a caller is left waiting"
        error = call.exception()
        assert error is None or isinstance(error, BackendError)
    if calls[2].exception() is None:
        assert repr(calls[2].result()) == repr(expected[3]), "a caller got the reply of another"


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 7] for at in range(0, len(data), 7)]


def _all_of(data: bytes) -> list[Any]:
    reader = ReplyReader()
    found: list[Any] = []
    try:
        for piece in _pieces(data):
            reader.feed(piece)
            while (reply := reader.gets()) is not False:
                found.append(reply)
    except ProtocolError:
        pass
    return found


_loops: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0]


def ended() -> None:
    """Close what the targets have opened. For drivers, when they end."""
    while _loops:
        _loops.pop().close()


def bus_message(data: bytes) -> None:
    """A message from a bus: headers, an empty line, a document. And the same document in a row of a table."""
    head, body = parted(data, 2)
    pairs = [each.partition(":") for each in head.decode("utf-8", "replace").split("\n")]
    headers = {name: value.strip() for name, mark, value in pairs if mark}
    try:
        message, first_ns = from_wire(body, headers)
    except Unreadable:
        json.dumps(dict(unreadable_wire("id", "job.submit", body).body)).encode()
    else:
        whole(first_ns, 0, 2**63 - 1)
        whole(message.priority, -PRIORITY_MAX, PRIORITY_MAX)
        assert isinstance(message.body, dict)
        assert message.fence is None or 0 <= message.fence.fence <= FENCE_MAX
        _passed_on(message)
    row = {
        "id": "a",
        "subject": "job.submit",
        "body": body.decode("utf-8", "replace"),
        "message_key": "k",
        "priority": 0,
        "not_before_ns": 0,
        "first_ns": 1,
        "fence_key": None,
        "fence": None,
    }
    try:
        assert isinstance(message_of(row).body, dict)
    except Unreadable:
        assert unreadable_row(row).body


def _passed_on(message: Any) -> None:
    try:
        rows = rows_of([message], 5)
    except BadInput as error:
        refused(error)
        return
    for row in rows:
        again, _ = from_wire(*wire_of(row))
        assert again == message


def bus_answer(data: bytes) -> None:
    """What a server says to a message that it was to store: stored is only what it says is stored, with its place."""
    from holdfast.stores.nats.answers import check_stored, translated  # newer than what the others are about

    with contextlib.suppress(nats.errors.Error, TimeoutError):  # what `NatsConnection.errors` turns into ours
        try:
            check_stored(data)
        except nats.errors.Error as error:
            refused(translated(error, "nats at x"))
            raise
        found = json.loads(data)
        assert type(found["seq"]) is int
        assert found.get("error") is None


def fence_headers(data: bytes) -> None:
    """The headers of a request or a message, `name: value` on lines. Both roads read them alike."""
    pairs = [(name.strip(), value) for name, mark, value in (e.partition(b":") for e in data.split(b"\n")) if mark]
    seen: list[CarriedFence | str | None] = []
    for act in (http_headers.presented, message_headers.carried_in):
        try:
            seen.append(act(pairs))
        except BadInput as error:
            refused(error)
            problem = http_headers.bad_header(error)
            body = problem.body("/x")
            assert all(b"\n" not in value for _, value in problem.response_headers(body))
            seen.append("refused")
    assert seen[0] == seen[1]
    if isinstance(seen[0], CarriedFence):
        sent = http_headers.request_headers(seen[0].key, seen[0].fence)
        assert message_headers.carried_in(sent) == seen[0]


def http_answer(data: bytes) -> None:
    """What a server answers to a request that carried a fence: it counts as refused only if a newer fence is named."""
    status, _, rest = data.partition(b"\n")
    pairs = [each.partition(":") for each in rest.decode("latin-1").split("\n")]
    headers = {name: value.strip() for name, mark, value in pairs if mark}
    code = int(status[:3]) if status[:3].isdigit() else 412
    presenter = Presenter("fuzz", CarriedFence("job", 7), False, {})
    attempt = presenter.attempt("POST", "https://api.example.com/x", ())
    error = attempt.answered(code, headers)
    if error is not None:
        assert error.seen > 7
        assert str(error.seen) in headers.values()


def prometheus_answer(data: bytes) -> None:
    """What a Prometheus says, or whatever else listens at its address."""
    text = data.decode("utf-8", "replace")
    for query in (MetricQuery("busy", "holdfast_lock_busy_total", by=by) for by in ((), ("family",))):
        try:
            found = vector_of(text, query)
        except HoldfastError as error:
            refused(error)
        else:
            assert found is None or all(type(value) is float for value in found.values())


def metrics_page(data: bytes) -> None:
    """A page of metrics, as whatever listens at that address answers it."""
    try:
        tuning_metrics.gather(tuning_metrics.parse(data, "there"), "there")
    except HoldfastError as error:
        refused(error)


_RESP: Final = (
    b"$-1\r\n",
    b"*-1\r\n",
    b":1\r\n",
    b"*2\r\n",
    b"$9223372036854775807\r\n",
    b"-NOSCRIPT x\r\n",
    b"+OK\r\n",
)
_ERRORS: Final = (
    b"-HFTYPE\r\n",
    b"-NOPERM x 'eval'\r\n",
    b"-WRONGPASS\r\n",
    b"-ERR unknown command\r\n",
    b"-MOVED\r\n",
)
_GIVEN: Final = f"{HEAD} 5 7 {TOKEN}".encode()
_GRANT: Final = (b"$%d\r\n%s\r\n" % (len(_GIVEN), _GIVEN), f"{HEAD} ".encode(), TOKEN.encode(), b"$2\r\n11\r\n")
_MESSAGE: Final = (
    *(b'{"id":"a","subject":"job.submit","message_key":"k","priority":0,"not_before_ns":0,"first_ns":1,"body":{}}',),
    *(b"Holdfast-Key: job\n", b"Holdfast-Fence: 7\n", b"\n--\n", b"NaN", b"1e999", b"\\ud800", b"[" * 60, b'"body":'),
)
_HEADERS: Final = (
    b"Holdfast-Key: a%2Cb\n",
    b"Holdfast-Fence: 7\n",
    b"Holdfast-Seen: 9\n",
    b"412\n",
    b",",
    b"\r",
    b"\xff",
)
_PROMETHEUS: Final = (
    b'{"status":"success","data":{"resultType":"vector","result":[',
    b'{"metric":{},"value":[1,"2"]}',
    b"]}}",
)

TARGETS: Final = (
    Target("redis-replies", redis_replies, "no grant, renewal or release by chance", (*_RESP, *_ERRORS, *_GRANT)),
    Target("redis-link", redis_link, "each caller gets its own reply", (*_RESP, *_ERRORS)),
    Target("bus-message", bus_message, "the message that was sent, or known as unreadable", _MESSAGE),
    Target(
        "bus-answer",
        bus_answer,
        "stored only if it says so",
        (b'{"stream":"S","seq":1}', b'"error":{"code":', b"9" * 40),
    ),
    Target("fence-headers", fence_headers, "one fence, or refused; alike in HTTP and messages", _HEADERS),
    Target("http-answer", http_answer, "refused only by a newer fence", _HEADERS),
    Target("prometheus-answer", prometheus_answer, "numbers by label, or what it was instead", _PROMETHEUS),
    Target(
        "metrics-page", metrics_page, "evidence, or what it was instead", (b"holdfast_", b"_bucket{le=", b"# TYPE ")
    ),
)
