"""Schedules for clients: the view, the operations of a transport, and the methods of a client.

    await client.schedule(sweep, cron="*/5 * * * *", tz="Europe/Berlin")
    await client.pause_schedule("billing.sweep", "incident 7")

Promises: each operation can be repeated after an unknown outcome. The view is the same for a database and for an API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar, Unpack

from holdfast.core.ports import Entropy
from holdfast.errors import RowMissing
from holdfast.plane.app import job_of_function
from holdfast.plane.client.request import ATTEMPTS, UNSET
from holdfast.plane.client.views import JobView, moment, parsed_time
from holdfast.plane.model.caller import Caller
from holdfast.plane.schedules.declaration import ScheduleOptions
from holdfast.plane.schedules.model import Schedule, ScheduleSpec, ScheduleState, made_spec
from holdfast.plane.schedules.store import FIRST
from holdfast.plane.service.schedules import ScheduleService
from holdfast.types import Duration

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as it was when it was read."""

    tenant: str
    name: str
    topic: str
    payload: Any
    state: ScheduleState
    expression: str  # its due times, for people
    app: str | None  # that declares it; None: it was created at run time
    paused_by: str | None
    paused_reason: str | None
    next_at: datetime | None  # None: it does not fire
    upcoming: tuple[datetime, ...]  # the next due times, where one schedule was read
    last_due_at: datetime | None
    last_fired_at: datetime | None
    last_job: str | None
    problem: str | None  # why the last due time could not be submitted
    fired: int
    skipped: int
    missed: int

    @classmethod
    def of(cls, schedule: Schedule, upcoming: Sequence[int] = ()) -> ScheduleView:
        """From the database."""
        spec = schedule.spec
        next_ns = schedule.next_ns if schedule.state is ScheduleState.ACTIVE else None
        return cls(
            *(spec.tenant, spec.name, spec.topic, spec.payload, schedule.state, spec.expression, schedule.app),
            *(schedule.paused_by, schedule.paused_reason, _moment(next_ns), tuple(map(moment, upcoming))),
            *(_moment(schedule.last_due_ns), _moment(schedule.last_fired_ns), schedule.last_job, schedule.problem),
            *(schedule.fired, schedule.skipped, schedule.missed),
        )

    @classmethod
    def parsed(cls, document: Mapping[str, Any]) -> ScheduleView:
        """From the API."""
        given = {name: document[name] for name in cls.__dataclass_fields__}
        times = ("next_at", "last_due_at", "last_fired_at")
        given |= {name: None if given[name] is None else parsed_time(given[name]) for name in times}
        given["upcoming"] = tuple(parsed_time(each) for each in given["upcoming"])
        return cls(**{**given, "state": ScheduleState(given["state"])})


class ScheduleTransport(Protocol):
    """The operations that a client needs."""

    async def put_schedule(self, spec: ScheduleSpec, *, paused: bool, replace: bool) -> ScheduleView:
        """Create or change a schedule."""
        ...

    async def schedules(self) -> list[ScheduleView]:
        """All schedules that the caller may see, by tenant and name."""
        ...

    async def schedule(self, name: str) -> ScheduleView:
        """One schedule, or `RowMissing`."""
        ...

    async def pause_schedule(self, name: str, reason: str) -> ScheduleView:
        """Stop firing."""
        ...

    async def resume_schedule(self, name: str) -> ScheduleView:
        """Fire again."""
        ...

    async def run_schedule(self, name: str, identity: str) -> JobView:
        """Submit a job with this id."""
        ...

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule, or `RowMissing`."""
        ...


class ServiceSchedules:
    """The same on the service of a plane in this process."""

    def __init__(self, service: ScheduleService, caller: Caller, tenant: str | None) -> None:
        self._service = service
        self._caller = caller
        self._tenant = tenant

    async def put_schedule(self, spec: ScheduleSpec, *, paused: bool, replace: bool) -> ScheduleView:
        """See `ScheduleTransport`."""
        stored, _ = await self._service.put(self._caller, spec, paused=paused, replaces=replace)
        return await self._whole(stored)

    async def schedules(self) -> list[ScheduleView]:
        """See `ScheduleTransport`."""
        found: list[ScheduleView] = []
        after = FIRST
        while True:
            page = await self._service.page(self._caller, tenant=self._tenant, after=after)
            found += map(ScheduleView.of, page.items)
            if page.after is None:
                return found
            after = page.after

    async def schedule(self, name: str) -> ScheduleView:
        """See `ScheduleTransport`."""
        return await self._whole(await self._service.get(self._caller, name, tenant=self._tenant))

    async def pause_schedule(self, name: str, reason: str) -> ScheduleView:
        """See `ScheduleTransport`."""
        paused, _ = await self._service.pause(self._caller, name, reason=reason, tenant=self._tenant)
        return await self._whole(paused)

    async def resume_schedule(self, name: str) -> ScheduleView:
        """See `ScheduleTransport`."""
        return await self._whole((await self._service.resume(self._caller, name, tenant=self._tenant))[0])

    async def run_schedule(self, name: str, identity: str) -> JobView:
        """See `ScheduleTransport`."""
        job, _ = await self._service.run(self._caller, name, id=identity, tenant=self._tenant)
        return JobView.of(job)

    async def delete_schedule(self, name: str) -> None:
        """See `ScheduleTransport`."""
        await self._service.delete(self._caller, name, tenant=self._tenant)

    async def _whole(self, schedule: Schedule) -> ScheduleView:
        return ScheduleView.of(schedule, await self._service.upcoming(schedule))


class NewSchedule(ScheduleOptions, total=False):
    """The options of `Client.schedule`: those of `App.cron` and `App.every`, and how the due times are given."""

    cron: str
    tz: str
    every: Duration | str
    offset: Duration | str
    replace: bool  # False: an error if the schedule exists with other options


class ScheduleMethods(ABC):
    """The methods of a client for schedules."""

    _entropy: Entropy
    _default_tenant: str | None

    @abstractmethod
    async def tried_on_schedules(self, work: Callable[[ScheduleTransport], Awaitable[T]]) -> T:
        """Do it, again and again while the plane does not answer."""

    async def schedule(
        self, job: Callable[..., Any] | str, payload: Any = UNSET, /, **options: Unpack[NewSchedule]
    ) -> ScheduleView:
        """Create a schedule of a job, or change it: a decorated function, or a topic with a payload.

        Either `cron` or `every` gives the due times. `name` is the topic by default. An unchanged schedule is left
        alone; other due times begin now.
        """
        given: dict[str, Any] = dict(options)
        paused, replace = given.pop("paused", False), given.pop("replace", True)
        positional = () if payload is UNSET else (payload,)
        if "payload" in given:
            positional = (given.pop("payload"),)
        if isinstance(job, str):
            topic, value = job, next(iter(positional), None)
        else:
            function = job_of_function(job)
            topic, value = function.topic, function.parameters.payload(positional, {})
            given.setdefault("max_attempts", ATTEMPTS if function.retries is None else function.retries + 1)
        given.setdefault("tenant", self._default_tenant)
        spec = made_spec(given.pop("name", topic), topic, payload=value, **given)
        return await self.tried_on_schedules(
            lambda transport: transport.put_schedule(spec, paused=paused, replace=replace)
        )

    async def schedules(self) -> list[ScheduleView]:
        """All schedules, by tenant and name."""
        return await self.tried_on_schedules(lambda transport: transport.schedules())

    async def get_schedule(self, name: str) -> ScheduleView:
        """One schedule with its next due times."""
        return await self.tried_on_schedules(lambda transport: transport.schedule(name))

    async def pause_schedule(self, name: str, reason: str = "") -> ScheduleView:
        """Stop firing until `resume_schedule`. Due times that pass meanwhile are not submitted."""
        return await self.tried_on_schedules(lambda transport: transport.pause_schedule(name, reason))

    async def resume_schedule(self, name: str) -> ScheduleView:
        """Fire again, from the next due time on."""
        return await self.tried_on_schedules(lambda transport: transport.resume_schedule(name))

    async def delete_schedule(self, name: str) -> bool:
        """Delete a schedule; its jobs stay. False: there is none."""
        try:
            await self.tried_on_schedules(lambda transport: transport.delete_schedule(name))
        except RowMissing:
            return False
        return True


def _moment(ns: int | None) -> datetime | None:
    return None if ns is None else moment(ns)
