"""A job to submit, with its options, checked before anything is sent.

    JobRequest(charge, invoice=7, amount=100, idempotency_key="order-7")
    JobRequest("invoice.charge", {"invoice": 7, "amount": 100}, delay=60)

Promises: a request that was made can be sent any number of times and makes one job: it has an id of its own, unless it
has an idempotency key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from holdfast.core.ports import Entropy
from holdfast.errors import BadInput
from holdfast.plane.app import JobFunction, job_of_function
from holdfast.plane.model.records import Submission, check_name
from holdfast.runtime.system import SystemEntropy
from holdfast.types import NS, Duration, duration_ns

R = TypeVar("R")

ATTEMPTS: Final = 3


class _Unset(Enum):
    PAYLOAD = "no payload"


UNSET: Final = _Unset.PAYLOAD


class JobRequest(Generic[R]):
    """One job to submit, for `Client.submit_many`."""

    def __init__(
        self,
        job: Callable[..., Any] | str,
        payload: Any = UNSET,
        /,
        *,
        idempotency_key: str | None = None,
        id: str | None = None,
        delay: Duration = 0,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        max_attempts: int | None = None,
        priority: int = 0,
        pool: str | None = None,
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
        trace: str = "",
        **arguments: Any,
    ) -> None:
        """`job` is the function of a job, or a topic. Other names than those of the options are its arguments.

        `deadline` limits the job as a whole and counts from its acceptance, `timeout` limits one attempt. An argument
        that has the name of an option is given in a payload: `JobRequest(charge, {"delay": 3})`.
        """
        self.function: JobFunction | None = None
        positional = () if payload is UNSET else (payload,)
        if isinstance(job, str):
            if arguments:
                fix = "give its payload as one object"
                raise BadInput(next(iter(arguments)), "is an argument, and a topic has no parameters", fix)
            topic, value = job, None if payload is UNSET else payload
        else:
            self.function = job_of_function(job)
            topic, value = self.function.topic, self.function.parameters.payload(positional, arguments)
        if max_attempts is None:
            retries = None if self.function is None else self.function.retries
            max_attempts = ATTEMPTS if retries is None else retries + 1
        self.delay_ns = duration_ns("delay", delay)
        self.deadline_ns = None if deadline is None else duration_ns("deadline", deadline, low_ns=1)
        self.timeout_ns = None if timeout is None else duration_ns("timeout", timeout, low_ns=1)
        self.pool = None if pool is None else check_name("pool", pool)
        self.tenant = tenant
        self._wanted = Submission(
            topic=topic,
            payload=value,
            tenant="default" if tenant is None else tenant,
            id=id,
            idempotency_key=idempotency_key,
            priority=priority,
            max_attempts=max_attempts,
            timeout_ns=self.timeout_ns,
            trace=trace,
            labels={} if labels is None else dict(labels),
        ).check()

    @property
    def topic(self) -> str:
        """The topic of the job."""
        return self._wanted.topic

    @property
    def trace(self) -> str:
        """The trace that it belongs to, or nothing."""
        return self._wanted.trace

    def submission(self, now_ns: int, tenant: str | None) -> Submission:
        """For the service of a plane."""
        return replace(
            self._wanted,
            tenant=self.tenant or tenant or "default",
            deadline_ns=None if self.deadline_ns is None else now_ns + self.deadline_ns,
            not_before_ns=now_ns + self.delay_ns if self.delay_ns else 0,
        )

    def document(self, tenant: str | None) -> dict[str, Any]:
        """For the HTTP API."""
        wanted = self._wanted
        given = {
            "topic": wanted.topic,
            "payload": wanted.payload,
            "tenant": self.tenant or tenant,
            "id": wanted.id,
            "idempotency_key": wanted.idempotency_key,
            "pool": self.pool,
            "priority": wanted.priority,
            "max_attempts": wanted.max_attempts,
            "timeout": _seconds(self.timeout_ns),
            "deadline_in": _seconds(self.deadline_ns),
            "delay": _seconds(self.delay_ns),
            "trace": wanted.trace,
            "labels": dict(wanted.labels),
        }
        return {name: value for name, value in given.items() if value is not None}

    def identify(self, entropy: Entropy | None = None) -> None:
        """Give it an id, so that it can be sent again after an unknown outcome."""
        if self._wanted.id is None and self._wanted.idempotency_key is None:
            self._wanted = replace(self._wanted, id=(entropy or SystemEntropy()).token())

    def __repr__(self) -> str:
        return f"<JobRequest {self.topic!r}>"


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS
