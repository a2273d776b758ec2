"""Schedules as an app declares them, with the options of `App.cron` and `App.every`.

Promises: an option that cannot be used is refused at the declaration, also a payload that the function cannot take.

Clock: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from holdfast.errors import BadInput
from holdfast.plane.parameters import Parameters
from holdfast.plane.schedules.model import ScheduleSpec, made_spec
from holdfast.types import Duration

ATTEMPTS: Final = 3


class ScheduleOptions(TypedDict, total=False):
    """The options that `App.cron` and `App.every` share."""

    name: str  # default: the topic
    overlap: str  # skip, queue, allow
    catch_up: str  # none, latest, all
    catch_up_max: int
    jitter: Duration | str
    paused: bool  # at first
    payload: Any
    tenant: str
    pool: str
    priority: int
    max_attempts: int
    timeout: Duration | str
    deadline: Duration | str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule as an app declares it."""

    spec: ScheduleSpec
    paused: bool = False  # at first; later an operator decides

    def text(self) -> str:
        """For the digest of a version of the app."""
        return f"{self.spec.tenant}/{self.spec.name} {self.spec.text()}"


def declared_schedule(
    topic: str, parameters: Parameters, retries: int | None, times: Mapping[str, Any], options: ScheduleOptions
) -> DeclaredSchedule:
    """A schedule for the function of a topic, or `BadInput`."""
    given: dict[str, Any] = dict(options)
    if unknown := sorted(given.keys() - ScheduleOptions.__annotations__.keys()):
        fix = f"use some of {', '.join(ScheduleOptions.__annotations__)}"
        raise BadInput(unknown[0], "is not an option of a schedule", fix)
    paused = given.pop("paused", False)
    if not isinstance(paused, bool):
        raise BadInput("paused", f"{paused!r:.60} is neither True nor False", "give one of them")
    name = given.pop("name", topic)
    payload = parameters.payload((given.pop("payload"),) if "payload" in given else (), {})
    given.setdefault("max_attempts", ATTEMPTS if retries is None else retries + 1)
    return DeclaredSchedule(made_spec(name, topic, payload=payload, **times, **given), paused)
