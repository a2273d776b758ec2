"""One consumer on NATS JetStream: it asks the server for as many messages as it has hands free.

A consumer of several subjects requests messages of each (`pull_sizes`), and withdraws its requests when all hands are
full. A message that was sent before the server knew is nacked without a delay, for another consumer.

Promises: the server counts deliveries, and never drops a message; the budget of failures is ours, kept in the plane's
database. While a message is in flight the server gets progress signals, so that a handler may take hours; a consumer
that died loses its messages after `ack_wait`. A delay goes to the server to the nanosecond. An acknowledgement that is
lost on its way costs a second delivery. When the consumer pauses or ends, its standing request is withdrawn first, and
what the server sent before that is nacked immediately. A process that is stopped in its tracks cannot withdraw: what
the server sends it for half an ack wait is delivered again after the ack wait.

A message that kills its consumer each time cannot be told here from one that was nacked often; it ends when it is
too old. (The embedded bus can tell.) Attempts at jobs end sooner: their runs are counted in their own history, see
`plane.worker.staleness`.

Clock: the event loop's for signals and heartbeats, the server's for delays, the wall clock for the age of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from holdfast.core.backoff import Backoff
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BackendError, HoldfastError
from holdfast.flows.log import OutageLog, log_event
from holdfast.plane.bus.delivery_rules import Ack, Nack
from holdfast.plane.bus.envelope import Unreadable, from_wire, unreadable_wire
from holdfast.plane.bus.failure_counts import NatsFailures
from holdfast.plane.bus.inflight import Dead, InFlight, InFlightMessage
from holdfast.plane.bus.nats.connection import NatsConnection
from holdfast.plane.bus.nats.pull_sizes import PullQueue, next_requests
from holdfast.plane.db.ports import Consumption, Handler
from holdfast.plane.model.records import Delivery, Message
from holdfast.types import MS, NS

_EXPIRES_MAX_NS: Final = 30 * NS  # of a request that waits for messages
_HEARTBEAT_MAX_NS: Final = 5 * NS  # while it waits; three that do not come are a request that was lost
_LATE_S: Final = 1.0  # that a heartbeat may be late
_AGAIN_NS: Final = 500 * MS
_STORE_TROUBLE_NS: Final = NS
_LIMIT_S: Final = 5.0  # for the server to hear that we leave
_INACTIVE_S: Final = 86_400.0  # after which the server forgets a consumer, though not its messages

# Messages that were nacked with a delay count as pending on the server: a small number would let a few busy ones
# hold up all others. What bounds a process is how many it asks for.
_ACK_PENDING_MIN: Final = 20_000
_ACK_PENDING_PER_HAND: Final = 64

_SHORT_REPLY: Final = 9  # words in the subject that a message is acknowledged to, on servers without domains

_log = logging.getLogger("holdfast")


class NatsConsumer:
    """See `ports.Consumer`."""

    def __init__(
        self,
        connection: NatsConnection,
        failures: NatsFailures,
        how: Consumption,
        handler: Handler,
        dead: Dead,
        *,
        clock: Clock,
        entropy: Entropy,
        backoff: Backoff,
    ) -> None:
        self._connection = connection
        self._failures = failures
        self._how = how
        self._clock = clock
        self._entropy = entropy
        # The request of a process that was stopped stands on; it must be over before a message that went there is
        # delivered again, or that would go there again.
        self._expires_ns = min(_EXPIRES_MAX_NS, how.ack_wait_ns // 2)
        self._heartbeat_ns = min(_HEARTBEAT_MAX_NS, self._expires_ns // 3)
        self._queues = [
            PullQueue(number, subject, connection.names.durable(how.group, subject), busy=number > 0 or not how.also)
            for number, subject in enumerate(how.subjects)
        ]
        self._by_durable = {queue.durable: queue for queue in self._queues}
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._withdrawing: set[asyncio.Task[None]] = set()
        self._in_flight = InFlight(
            how, handler, dead, self._settle, clock=clock, entropy=entropy, backoff=backoff, freed=self._wakened
        )
        self._accepting = False
        self._paused = False
        self._ending = False
        self._broken = False  # the session must be started again
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._leave: Callable[[], None] | None = None

    @property
    def handling(self) -> int:
        """See `ports.Consumer`."""
        return self._in_flight.handling

    @property
    def tally(self) -> Counter[str]:
        """The outcome of deliveries."""
        return self._in_flight.tally

    def pause(self) -> None:
        """See `ports.Consumer`."""
        self._paused = True
        self._wakened()

    def resume(self) -> None:
        """See `ports.Consumer`."""
        self._paused = False
        self._wakened()

    def start(self) -> None:
        """Begin to take messages."""
        loop = asyncio.get_running_loop()
        self._leave = self._connection.on_reconnect(self._is_back)
        self._tasks = [loop.create_task(self._sessions()), loop.create_task(self._signals())]

    async def drain(self, grace_ns: int) -> None:
        """Withdraw the requests, let handlers finish for a while, nack the rest, and tell the server."""
        self._ending = True
        self._wakened()
        sessions, signals = self._tasks
        _, late = await asyncio.wait([sessions], timeout=2 * _LIMIT_S)
        for task in late:
            task.cancel()
        await self._in_flight.drain(grace_ns)
        signals.cancel()
        await asyncio.wait([sessions, signals])
        if self._leave is not None:
            self._leave()
        with contextlib.suppress(HoldfastError, nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(_LIMIT_S):
                await (await self._connection.client()).flush()

    # Sessions: a subscription, and requests that are answered there.

    async def _sessions(self) -> None:
        trouble = OutageLog(_log, "no messages for now", "messages come again", subject=self._how.subject)
        while not self._ending:
            if self._paused:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._session()
            except Exception as error:  # noqa: BLE001 - the server is away; in-flight messages go on, and it comes back
                trouble.met(error)
                self._broken = True
            if self._broken and not self._ending:
                await asyncio.sleep((_AGAIN_NS // 2 + self._entropy.below(_AGAIN_NS)) / NS)

    async def _session(self) -> None:
        with self._connection.errors():
            context = await self._connection.stream()
            for queue in self._queues:
                await context.add_consumer(self._connection.names.stream, self._config(queue))
            client = await self._connection.client()
            self._accepting, self._broken = True, False
            try:
                while not (self._ending or self._paused or self._broken or client.is_closed):
                    self._wake.clear()
                    await self._ask(client)
                    await self._rest()
            finally:
                self._accepting = False
                self._withdraw()
                if self._withdrawing:
                    await asyncio.wait([*self._withdrawing])

    def _config(self, queue: PullQueue) -> api.ConsumerConfig:
        return api.ConsumerConfig(
            name=queue.durable,  # so that the request says, in its subject, which messages it is for: see `ops.access`
            durable_name=queue.durable,
            filter_subject=self._connection.names.subject(self._how.group, queue.subject),
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=self._how.ack_wait_ns / NS,
            max_deliver=-1,
            max_ack_pending=max(_ACK_PENDING_MIN, _ACK_PENDING_PER_HAND * self._how.concurrency),
            inactive_threshold=_INACTIVE_S,
        )

    async def _ask(self, client: Client) -> None:
        now_s = asyncio.get_running_loop().time()
        for queue in self._queues:
            if queue.asked and now_s - queue.heard_s > 3 * self._heartbeat_ns / NS + _LATE_S:
                queue.asked = 0  # the request was lost, with a server or a connection
        wanted = next_requests(self._queues, self._in_flight.free, self._how.concurrency)
        if not client.is_connected:
            return
        if wanted.withdraw:
            self._withdraw()
            for queue in self._queues if wanted.more else ():
                queue.busy = False  # the slots are divided again, and next time by what comes from now on
        if wanted.more and self._subscription is None:
            self._inbox = client.new_inbox()
            self._subscription = await client.subscribe(f"{self._inbox}.*", cb=partial(self._arrived, self._inbox))
        for queue, number in wanted.more:
            wish = {"batch": number, "expires": self._expires_ns, "idle_heartbeat": self._heartbeat_ns}
            queue.asked += number
            queue.heard_s = now_s
            pull, reply = self._connection.names.pull(queue.durable), f"{self._inbox}.{queue.number}"
            await client.publish(pull, json.dumps(wish).encode(), reply=reply)

    def _withdraw(self) -> None:
        """End all requests. What the server sends before it knows still arrives, at the subscription that ends."""
        for queue in self._queues:
            queue.asked = 0
        subscription, self._subscription, self._inbox = self._subscription, None, ""
        if subscription is not None:
            task = asyncio.get_running_loop().create_task(_withdrawn(subscription))
            self._withdrawing.add(task)
            task.add_done_callback(self._withdrawing.discard)

    async def _rest(self) -> None:
        timer = asyncio.get_running_loop().call_later(self._heartbeat_ns / NS, self._wakened)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _wakened(self) -> None:
        self._wake.set()

    def _is_back(self) -> None:
        for queue in self._queues:
            queue.asked = 0  # requests do not survive the connection
        self._wakened()

    # Arrivals.

    async def _arrived(self, inbox: str, msg: Msg) -> None:
        status = (msg.headers or {}).get("Status")
        if status is not None and not msg.reply.startswith("$JS.ACK."):
            if inbox == self._inbox:
                self._on_status(self._queues[int(msg.subject.rpartition(".")[2])], status, msg.headers or {})
            return
        queue = self._by_durable[consumer_of(msg)]
        if inbox == self._inbox:
            queue.asked, queue.busy = max(0, queue.asked - 1), True
            queue.heard_s = asyncio.get_running_loop().time()
        try:
            if not self._accepting or (self._how.also and not self._in_flight.free):
                self.tally["passed_on"] += self._accepting
                await _nak(msg, 0)
                return
            taken = await self._taken(msg, queue)
        except BackendError:
            await _nak(msg, _STORE_TROUBLE_NS)
        else:
            await self._in_flight.take([taken])
        self._wakened()

    def _on_status(self, queue: PullQueue, status: str, headers: dict[str, str]) -> None:
        """A word of the server about a request of ours."""
        queue.heard_s = asyncio.get_running_loop().time()
        if status == "100":
            return  # it is still there
        left = headers.get("Nats-Pending-Messages", "")
        queue.asked = max(0, queue.asked - int(left)) if left.isdecimal() else 0
        if status not in {"404", "408"} and "Batch Completed" not in headers.get("LockSpec", ""):
            # The consumer or the stream is gone, or has moved; it may have to be made again.
            self._connection.forget_stream()
            self._broken = True
        self._wakened()

    async def _taken(self, msg: Msg, queue: PullQueue) -> InFlightMessage:
        deliveries = deliveries_of(msg)
        now_s = asyncio.get_running_loop().time()
        try:
            message, first_ns = from_wire(msg.data, msg.headers)
            problem = None
        except Unreadable as error:
            metadata = msg.metadata
            identity = (msg.headers or {}).get("Nats-Msg-Id") or f"{metadata.stream}:{metadata.sequence.stream}"
            message, problem = unreadable_wire(identity, queue.subject, msg.data), str(error)
            first_ns = int(metadata.timestamp.timestamp() * NS)
        failures = await self._failures.of(message, self._how.group) if deliveries > 1 else 0
        return InFlightMessage(
            Delivery(message, self._how.group, deliveries, failures, first_ns), msg, now_s, problem=problem
        )

    # Settling.

    async def _settle(self, taken: InFlightMessage, verdict: Ack | Nack) -> None:
        msg: Msg = taken.handle
        message: Message = taken.delivery.message
        with contextlib.suppress(BackendError):  # then it is not counted, or its count is swept away later
            if isinstance(verdict, Nack) and verdict.counts:
                await self._failures.note(message, self._how.group)
            elif isinstance(verdict, Ack) and taken.delivery.failures:
                await self._failures.forget(message, self._how.group)
        try:
            if ARMED:
                await areach("plane.nats.ack")
            if isinstance(verdict, Ack):
                await msg._client.publish(msg.reply, Msg.Ack.Ack)  # noqa: SLF001 - `ack` says the same with less
            else:
                await _nak(msg, verdict.delay_ns)
            if ARMED:
                await areach("plane.nats.acked")
        except (nats.errors.Error, OSError) as error:
            text = "a message could not be settled, and will be delivered again"
            log_event(_log, logging.INFO, text, error, subject=self._how.subject, message=message.id)

    async def _signals(self) -> None:
        """Tell the server what is being worked on."""
        every_s = self._how.ack_wait_ns / NS / 3
        while True:  # ends by cancellation
            await asyncio.sleep(every_s / 2)
            before_s = asyncio.get_running_loop().time() - every_s / 2
            for taken in self._in_flight.silent_since(before_s):
                with contextlib.suppress(nats.errors.Error, OSError):
                    await taken.handle.in_progress()


def deliveries_of(msg: Msg) -> int:
    """How often a message was delivered, by the subject that it is acknowledged to.

    `$JS.ACK.<stream>.<consumer>.<deliveries>.…`, or with two more words, a domain and an account, before the stream.
    """
    words = msg.reply.split(".")
    number = words[4 if len(words) == _SHORT_REPLY else 6] if len(words) >= _SHORT_REPLY else ""
    return int(number) if number.isdecimal() else msg.metadata.num_delivered


def consumer_of(msg: Msg) -> str:
    """The durable consumer that delivered a message, by the same subject. Its name has no dots."""
    words = msg.reply.split(".")
    return words[3 if len(words) == _SHORT_REPLY else 5]


async def _nak(msg: Msg, delay_ns: int) -> None:
    """Give a message back. The client's own `nak` takes seconds, and loses nanoseconds on the way."""
    text = b"-NAK" if not delay_ns else b'-NAK {"delay": %d}' % delay_ns
    await msg._client.publish(msg.reply, text)  # noqa: SLF001 - there is no other way to the client of a message


async def _withdrawn(subscription: Subscription) -> None:
    """End a subscription. Messages sent before the server knew still arrive, and are nacked."""
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(_LIMIT_S):
            await subscription.drain()  # type: ignore[no-untyped-call]  # the client's own gap
