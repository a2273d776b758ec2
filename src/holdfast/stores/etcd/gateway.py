"""Asking an etcd cluster through its JSON gateway: endpoints, sessions, and what may be asked twice.

Promises: a request that got no answer from one member is sent to the next one, within the same deadline, if it is
harmless to repeat it. A second try never hides the doubt of the first: if it is refused or cannot be sent, the outcome
is still unknown, and the error of the first try is raised. With several endpoints a member that hangs costs its share
of the time and not all of it, and the next call begins at another member. All reads are linearizable: etcd answers them
only while it has a quorum. HTTP does not say to which request an answer belongs: one that has another form, or that
reports a write at a revision known before, is no answer.

Does not promise that a member which was cut off says so: then the deadline ends the call. Clock: the driver's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.stores.etcd.errors import AuthDisabled, EtcdConnectionBroken, TokenExpired, garbled, refusal
from holdfast.stores.etcd.http import HttpDriver
from holdfast.stores.etcd.messages import (
    Message,
    TransactionAnswer,
    always_writes,
    is_answer,
    nested,
    read_outcome,
    text,
    transaction,
)
from holdfast.stores.etcd.url import EtcdAddress
from holdfast.stores.url_parts import Endpoint
from holdfast.types import MS

T = TypeVar("T")

_NO_SESSION: Final = ""
_SESSIONS_MAX: Final = 3  # tokens of a session tried for one request
_MALFORMED: Final = (KeyError, ValueError, TypeError, AttributeError, StopIteration, RecursionError)


class Gateway:
    """One cluster, in the color of its driver."""

    def __init__(self, address: EtcdAddress, http: HttpDriver) -> None:
        self._address = address
        self._http = http
        self._at = 0  # the endpoint that answered last
        self._token: str | None = None if address.username else _NO_SESSION
        self._newest = ("", 0)  # the cluster and the newest revision that it has reported

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return self._http.deadline(timeout_ns)

    def left_ns(self, deadline_ns: int) -> int:
        """The time until a deadline."""
        return max(0, deadline_ns - self._http.deadline(0))

    async def transact(
        self,
        deadline_ns: int,
        compare: Sequence[Message],
        success: Sequence[Message],
        failure: Sequence[Message] = (),
        *,
        twice: bool = True,
        settles: Callable[[TransactionAnswer], bool] | None = None,
    ) -> TransactionAnswer:
        """Run one transaction. `twice` and `settles`: see `call`.

        A transaction that only reads is made to look as if it wrote. etcd serves it outside of consensus otherwise, and
        versions before 3.5.6 then end in a panic when its client goes away (etcd issue 14110).
        """
        if all("request_range" in each for each in (*success, *failure)):
            failure = (*failure, nested((), ()))
        message = transaction(compare, success, failure)
        cluster, newest = self._newest
        writes = always_writes(compare, success)

        def read(reply: Any) -> TransactionAnswer:
            outcome = read_outcome(reply)
            older = writes and outcome.succeeded and outcome.cluster == cluster and outcome.revision <= newest
            if older or not is_answer(reply, success, failure):
                self._newest = ("", 0)  # or the members were set back to a snapshot: the next answer is believed
                raise ValueError("the answer to another request")
            if self._newest[0] != outcome.cluster or self._newest[1] < outcome.revision:
                self._newest = (outcome.cluster, outcome.revision)
            return outcome

        return await self.call("/v3/kv/txn", message, deadline_ns, read, twice=twice, settles=settles)

    async def call(
        self,
        path: str,
        message: Message,
        deadline_ns: int,
        read: Callable[[Any], T],
        *,
        twice: bool = True,
        settles: Callable[[T], bool] | None = None,
    ) -> T:
        """Send a request and read its answer.

        `twice`: a request that may have had an effect may be sent again. `settles`: only such an answer to a repetition
        tells the outcome of the first.
        """
        doubt: Timeout | None = None
        tries = max(2, len(self._address.endpoints))
        for number in range(tries):
            at = self._at
            endpoint = self._address.endpoints[at % len(self._address.endpoints)]
            try:
                answer = await self._ask(endpoint, path, message, self._limit(deadline_ns, tries - number), read)
            except Timeout as error:
                doubt = doubt or error
                failed: BackendError = error
            except Unavailable as error:
                failed = error
            except BackendError:
                if doubt is not None:
                    raise doubt from None
                raise
            else:
                if doubt is not None and settles is not None and not settles(answer):
                    raise doubt
                return answer
            if self._at == at:
                self._at = (at + 1) % len(self._address.endpoints)
            final = number + 1 == tries or (doubt is not None and not twice) or self.left_ns(deadline_ns) < MS
            if final or not _may_be_local(failed):
                raise doubt or failed
        raise RuntimeError("a call without a try")

    async def each(
        self, path: str, read: Callable[[Any], T], deadline_ns: int
    ) -> dict[str, tuple[T | BackendError, int]]:
        """Ask every member of the URL for itself, one after the other: its answer or error, and how long it took.

        The members that are left share the time.
        """
        answers: dict[str, tuple[T | BackendError, int]] = {}
        endpoints = self._address.endpoints
        for number, endpoint in enumerate(endpoints):
            before = self._http.deadline(0)
            limit = before + self.left_ns(deadline_ns) // (len(endpoints) - number)
            answer: T | BackendError
            try:
                answer = await self._ask(endpoint, path, {}, limit, read)
            except BackendError as error:
                answer = error
            answers[str(endpoint)] = (answer, self._http.deadline(0) - before)
        return answers

    async def gone(self, key: bytes, after_revision: int, deadline_ns: int) -> bool:
        """Wait until the key is deleted after this revision. False: not before the deadline.

        Raises a `BackendError` when the member stops to answer, or has already forgotten that revision.
        """
        deleted = False
        ended = b""

        def heard(line: bytes) -> bool:
            nonlocal deleted, ended
            try:
                result = json.loads(line).get("result") or {}
                events = result.get("events", ())
                deleted = deleted or any(event.get("type") == "DELETE" for event in events)
                if not deleted and (not result or result.get("canceled")):
                    ended = line
            except _MALFORMED:
                ended = line
            return deleted or bool(ended)

        start = {"key": text(key), "start_revision": str(after_revision + 1), "filters": ["NOPUT"]}
        body = json.dumps({"create_request": start}).encode()
        endpoint = self._address.endpoints[self._at % len(self._address.endpoints)]
        token = await self._session(endpoint, deadline_ns)
        await self._http.listen(endpoint, "/v3/watch", body, token, deadline_ns, heard)
        if not deleted and self.left_ns(deadline_ns):
            raise Unavailable(f"etcd at {endpoint} ended a watch")
        return deleted

    async def settle(self, deadline_ns: int) -> None:
        """Wait for requests whose callers were cancelled, for at most half of the time."""
        await self._http.settle(self._http.deadline(self.left_ns(deadline_ns) // 2))

    async def sleep(self, ns: int) -> None:
        """Let time pass."""
        await self._http.sleep(ns)

    async def close(self) -> None:
        """Close idle connections."""
        await self._http.close()

    def _limit(self, deadline_ns: int, tries_left: int) -> int:
        """When to give up one member: a share of the time that is left, but all of it where there is no other one."""
        if len(self._address.endpoints) == 1 or tries_left == 1:
            return deadline_ns
        return self._http.deadline(self.left_ns(deadline_ns) // tries_left)

    async def _ask(
        self, endpoint: Endpoint, path: str, message: Message, deadline_ns: int, read: Callable[[Any], T]
    ) -> T:
        body = json.dumps(message).encode()
        for _ in range(_SESSIONS_MAX):
            token = await self._session(endpoint, deadline_ns)
            try:
                return await self._post(endpoint, path, body, token, deadline_ns, read)
            except TokenExpired:
                if self._token is token:
                    self._token = None
        raise Unavailable(f"etcd at {endpoint} does not accept the sessions that it opens")

    async def _session(self, endpoint: Endpoint, deadline_ns: int) -> str:
        """The token of a session; empty: none is needed."""
        if self._token is None:
            ask = json.dumps({"name": self._address.username, "password": self._address.password}).encode()
            try:
                self._token = str(
                    await self._post(
                        endpoint, "/v3/auth/authenticate", ask, None, deadline_ns, lambda reply: reply["token"]
                    )
                )
            except AuthDisabled:
                self._token = _NO_SESSION
            except Timeout as error:
                raise Unavailable(f"etcd at {endpoint} opened no session in time") from error
        return self._token

    async def _post(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        token: str | None,
        deadline_ns: int,
        read: Callable[[Any], T],
    ) -> T:
        if self.left_ns(deadline_ns) <= 0:
            raise Unavailable(f"etcd at {endpoint}: no time was left to send the request")
        status, answer = await self._http.post(endpoint, path, body, token, deadline_ns)
        if status != 200:
            raise refusal(endpoint, self._address.username, status, answer)
        try:
            return read(json.loads(answer))
        except _MALFORMED:
            await self._http.discard()  # the next answer on this connection may be one to an earlier request
            raise garbled(endpoint) from None


def _may_be_local(error: BackendError) -> bool:
    """Whether another member may answer where this one did not."""
    return type(error) in (Unavailable, Timeout, EtcdConnectionBroken)
