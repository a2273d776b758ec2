"""An attempt as the scheduler asks for it: the message on `work.<pool>`, read and checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import BadInput
from holdfast.plane.model.records import Message, check_id, check_whole
from holdfast.types import check_label

_FAR = 1 << 63


@dataclass(slots=True, unsafe_hash=True)
class Assignment:
    """One attempt at one job. Receivers do not change it."""

    job: str
    attempt: int
    topic: str
    tenant: str
    payload: Any
    timeout_ns: int | None = None  # how long it may run
    deadline_ns: int | None = None  # until when it is worth anything; wall clock
    labels: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""
    at_ns: int = 0  # when it was handed out; wall clock
    made_ns: int = 0  # when its job was made: a later job may have the same id
    counted: bool = False  # a worker of the pool has a place of its topic, as far as the scheduler knows
    fence: int | None = None  # of the job's lock when it was handed out; it may be handed out again, under a higher one

    @property
    def name(self) -> tuple[str, int, int]:
        """What tells it from every other attempt, also at another job that has had this id."""
        return self.job, self.made_ns, self.attempt


def order_of(message: Message) -> Assignment:
    """What a message asks for, or `BadInput`: then it will never be understood, here or elsewhere."""
    body = message.body
    try:
        return Assignment(
            check_id("job", body["job"]),
            check_whole("attempt", body["attempt"], 0, _FAR),
            check_label("topic", body["topic"]),
            check_label("tenant", body["tenant"]),
            body["payload"],
            _time("timeout_ns", body.get("timeout_ns")),
            _time("deadline_ns", body.get("deadline_ns")),
            dict(body.get("labels") or {}),
            str(body.get("trace") or ""),
            check_whole("at_ns", body.get("at_ns", 0), 0, _FAR),
            check_whole("made_ns", body.get("made_ns", 0), 0, _FAR),
            bool(body.get("counted")),
            None if message.fence is None else message.fence.fence,
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            "message", f"{message.id} is not an attempt ({error!r})", "send what dispatched() makes"
        ) from None


def _time(name: str, value: object) -> int | None:
    return None if value is None else check_whole(name, value, -_FAR, _FAR)
