"""`App`: the job functions, workflows and schedules of a service; and how `module:name` is resolved to an `App`.

    app = App("billing")

    @app.job("invoice.charge", pool="money", max_concurrency=4)
    async def charge(payload, *, ctx): ...

    @app.workflow("monthly", inputs={"customer": "text"})
    def monthly(flow): ...

    @app.cron("*/5 * * * *", tz="Europe/Berlin")
    def sweep(): ...

Promises: a function that cannot run as a job is refused at its declaration, with the reason, and not when the first job
arrives. The decorator returns the function unchanged, so it can be called and tested as before.

`load_app` imports the module, which runs it. An error inside the module is distinguished from a missing module, and
keeps its cause.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, TypeVar, Unpack

from holdfast.errors import BadInput
from holdfast.plane.model.outcome import Fatal, Quarantine, error_text
from holdfast.plane.model.records import ATTEMPTS_MAX, CONCURRENCY_MAX, DEFAULT_POOL, check_name, check_whole
from holdfast.plane.parameters import CONTEXT, Parameters, parameters_of
from holdfast.plane.schedules.declaration import DeclaredSchedule, ScheduleOptions, declared_schedule
from holdfast.plane.workflows.builder import Flow, FlowOptions
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.plane.workflows.core.validation import check_workflow
from holdfast.types import Duration, check_label, duration_ns

F = TypeVar("F", bound=Callable[..., Any])

_NOTE: Final = "__holdfast_jobs__"


@dataclass(frozen=True, slots=True)
class JobFunction:
    """A function with its options."""

    topic: str
    parameters: Parameters
    asynchronous: bool
    pool: str = DEFAULT_POOL
    max_concurrency: int | None = None  # in one worker; None: the slots of the worker
    timeout_ns: int | None = None  # limit of one attempt, unless the job has a shorter one
    stall_after_ns: int | None = None  # limit for one attempt without reported progress
    quarantine: Callable[[Any], str | None] | None = None  # why a result must not be used; None: it may be used
    retries: int | None = None  # of a submission with this function; None: the default
    scheduled: bool = False  # it is a job because it has a schedule

    def call(self, payload: Any, context: Any) -> Any:
        """Call the function. `Fatal`: the payload does not fit it."""
        try:
            positional, named = self.parameters.call_arguments(payload)
        except BadInput as error:
            raise Fatal(f"the payload does not fit: {error}") from error
        if self.parameters.wants_context:
            named[CONTEXT] = context
        return self.parameters.function(*positional, **named)

    def judged(self, returned: Any) -> Any:
        """The result of the function as JSON, or `Quarantine`. Runs where the function ran."""
        value = self.parameters.result_json(returned)
        reason: object = None if self.quarantine is None else self.quarantine(value)
        if reason is None:
            return value
        if not isinstance(reason, str) or not reason.strip():
            raise TypeError(f"quarantine of {self.topic!r} returned {reason!r:.60}; return a reason, or None")
        raise Quarantine(reason)


class App:
    """The job functions, the workflows and the schedules of one service."""

    def __init__(self, name: str) -> None:
        self.name = check_name("name", name)
        self._functions: dict[str, JobFunction] = {}
        self._workflows: dict[str, Workflow] = {}
        self._schedules: dict[tuple[str, str], DeclaredSchedule] = {}

    @property
    def functions(self) -> Mapping[str, JobFunction]:
        """Every function by its topic."""
        return MappingProxyType(self._functions)

    @property
    def workflows(self) -> Mapping[str, Workflow]:
        """Every workflow by its name. A plane with this app defines them when it starts."""
        return MappingProxyType(self._workflows)

    @property
    def schedules(self) -> tuple[DeclaredSchedule, ...]:
        """Every schedule. A plane or worker with this app stores them when it starts."""
        return tuple(self._schedules.values())

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools that its topics belong to, sorted."""
        return tuple(sorted({each.pool for each in self._functions.values()}))

    def topics(self, pool: str) -> tuple[str, ...]:
        """The topics of one pool, sorted."""
        return tuple(sorted(each.topic for each in self._functions.values() if each.pool == pool))

    def job(
        self,
        topic: str,
        *,
        pool: str = DEFAULT_POOL,
        max_concurrency: int | None = None,
        timeout: Duration | None = None,
        stall_after: Duration | None = None,
        quarantine: Callable[[Any], str | None] | None = None,
        retries: int | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that runs the jobs of a topic.

        It takes the payload, and the context if it has a parameter called `ctx`; it may be `async def` or `def` (which
        runs in a thread). Its other parameters are members of the payload, unless the first one is called `payload`
        (see `plane.parameters`). Its return value is the result, and must be JSON, or a dataclass, TypedDict or model
        that its annotation declares. It may run more than once for one job: pass `ctx.carried` to a guard wherever that
        would hurt.

        `timeout` limits one attempt, and `stall_after` the time without `ctx.progress()`; after either, the attempt is
        stopped and retried. `quarantine` is called with each return value, and returns the reason why it must not be
        used, or None. With a reason the job ends as OUTPUT_QUARANTINED and the value is not stored; see `Quarantine`.
        `retries` is the number of attempts after the first one, for jobs that a client submits with this function.
        """
        check_label("topic", topic)
        check_name("pool", pool)
        if max_concurrency is not None:
            check_whole("max_concurrency", max_concurrency, 1, CONCURRENCY_MAX)
        timeout_ns = None if timeout is None else duration_ns("timeout", timeout, low_ns=1)
        stall_after_ns = None if stall_after is None else duration_ns("stall_after", stall_after, low_ns=1)
        if retries is not None:
            check_whole("retries", retries, 0, ATTEMPTS_MAX - 1)
        _check_quarantine(quarantine)

        def decorate(function: F) -> F:
            if any(each.scheduled for each in getattr(function, _NOTE, ())):
                raise BadInput("topic", "is given below a schedule", "put @app.cron or @app.every above @app.job")
            if topic in self._functions:
                raise BadInput("topic", f"{topic!r} has a function already", "give each topic one function")
            job = self._functions[topic] = JobFunction(
                *(topic, _checked_parameters(function), _awaited(function), pool, max_concurrency, timeout_ns),
                *(stall_after_ns, quarantine, retries),
            )
            _note(function, job)
            return function

        return decorate

    def cron(self, expression: str, *, tz: str = "UTC", **options: Unpack[ScheduleOptions]) -> Callable[[F], F]:
        """Decorate the function of a job, or a plain function, to submit it at the times of a cron expression.

        A plain function becomes a job whose topic is the name of the app, a dot, and the name of the function. The
        expression has five fields, in the time zone `tz`; see docs/schedules.md for both changes to daylight-saving
        time, and for the options: `name`, `overlap`, `catch_up`, `catch_up_max`, `jitter`, `paused`, `payload`,
        `tenant`, `pool`, `priority`, `max_attempts`, `timeout`, `deadline`, `labels`.
        """
        return self._scheduled({"cron": expression, "tz": tz}, options)

    def every(
        self, interval: Duration | str, *, offset: Duration | str = 0, **options: Unpack[ScheduleOptions]
    ) -> Callable[[F], F]:
        """The same for an interval: seconds, a `timedelta`, or text such as 10m.

        The due times are the multiples of the interval since 1970, moved by `offset`. So they do not drift, and a new
        release of the app keeps them.
        """
        return self._scheduled({"every": interval, "offset": offset}, options)

    def _scheduled(self, times: Mapping[str, Any], options: ScheduleOptions) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            job = self._job_to_schedule(function)
            schedule = declared_schedule(job.topic, job.parameters, job.retries, times, options)
            key = schedule.spec.tenant, schedule.spec.name
            if key in self._schedules:
                raise BadInput(
                    "name", f"there is a schedule {key[1]!r} already", "give each schedule a name= of its own"
                )
            if job.topic not in self._functions:
                self._functions[job.topic] = job
                _note(function, job)
            self._schedules[key] = schedule
            return function

        return decorate

    def _job_to_schedule(self, function: Callable[..., Any]) -> JobFunction:
        """The job that the function runs in this app, or a new one with a topic of its own."""
        if any(self._functions.get(each.topic) is each for each in getattr(function, _NOTE, ())):
            return job_of_function(function)
        parameters = _checked_parameters(function)
        name = getattr(function, "__name__", type(function).__name__).strip("_")
        topic = check_label("topic", f"{self.name}.{name}")
        if topic in self._functions:
            raise BadInput("topic", f"{topic!r} has a function already", "rename the function, or add @app.job(TOPIC)")
        return JobFunction(topic, parameters, _awaited(function), scheduled=True)

    def workflow(self, name: str, **options: Unpack[FlowOptions]) -> Callable[[Callable[[Flow], Any]], Workflow]:
        """Decorate a function that defines a workflow, as `holdfast.plane.workflow` does, and add the workflow."""

        def decorate(define: Callable[[Flow], Any]) -> Workflow:
            return self.include(Flow(name, **options)(define))

        return decorate

    def include(self, workflow: Workflow) -> Workflow:
        """Add a workflow that was defined elsewhere, for instance in a file. Returns it."""
        given: object = workflow
        if not isinstance(given, Workflow):
            fix = "give what build() or load_workflow() returns"
            raise BadInput("workflow", f"{type(given).__name__} is not a workflow", fix)
        if problems := check_workflow(workflow):
            raise BadWorkflow(f"workflow {workflow.name!r}", problems)
        if workflow.name in self._workflows:
            raise BadInput("workflow", f"there is a workflow {workflow.name!r} already", "use another name")
        self._workflows[workflow.name] = workflow
        return workflow

    def __repr__(self) -> str:
        return f"<App {self.name!r} {len(self._functions)} topics>"


def job_of_function(function: object) -> JobFunction:
    """The job that a decorated function runs, or `BadInput`."""
    jobs: tuple[JobFunction, ...] = getattr(function, _NOTE, ())
    if len(jobs) == 1:
        return jobs[0]
    name = getattr(function, "__qualname__", repr(function)[:80])
    if jobs:
        topics = ", ".join(each.topic for each in jobs)
        raise BadInput("job", f"{name} runs the jobs of several topics ({topics})", "give the topic and a payload")
    raise BadInput("job", f"{name} is not the function of a job", "decorate it with @app.job(TOPIC), or give a topic")


def _note(function: Callable[..., Any], job: JobFunction) -> None:
    """Remember the job at its function, for `job_of_function`."""
    with suppress(AttributeError, TypeError):  # bound methods and some callable objects take no attributes
        setattr(function, _NOTE, (*getattr(function, _NOTE, ()), job))


def _checked_parameters(function: object) -> Parameters:
    if any(kind(each) for each in _bodies(function) for kind in _GENERATORS):
        name = getattr(function, "__qualname__", repr(function))
        raise BadInput("function", f"{name} is a generator", "return one result; a job cannot yield")
    return parameters_of(function)


def _check_quarantine(function: object) -> None:
    if function is not None and (not callable(function) or _awaited(function)):
        fix = "give a def that takes a result and returns a reason, or None"
        raise BadInput("quarantine", f"{function!r:.60} cannot judge a result", fix)


_GENERATORS: Final = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def _bodies(function: object) -> tuple[object, ...]:
    """The function itself, or the method that makes an object callable."""
    return function, getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is needed


def _awaited(function: object) -> bool:
    return any(inspect.iscoroutinefunction(each) for each in _bodies(function))


_FORM: Final = "write module:name, such as billing.jobs:app"


def load_app(target: str) -> App:
    """The app that `module:name` refers to. Modules in the working directory are found too."""
    module_name, mark, name = target.partition(":")
    if not mark or not all(part.isidentifier() for text in (module_name, name) for part in text.split(".")):
        raise BadInput("app", f"{target!r} does not name an app", _FORM)
    try:
        found: object = _imported(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _broken(module_name, error) from error
        fix = "check its name, run from the directory that has it, or set PYTHONPATH"
        raise BadInput("app", f"there is no module {error.name!r}", fix) from error
    except (Exception, SystemExit) as error:  # a script that exits is not a module with an app
        raise _broken(module_name, error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadInput("app", f"{module_name} has no {name!r}", _others(module_name))
        found = getattr(found, part)
    if not isinstance(found, App):
        raise BadInput("app", f"{target} is a {type(found).__name__} and not an App", _others(module_name))
    return found


def _imported(name: str) -> ModuleType:
    """Import a module, from the working directory if it is there.

    The directory is appended to the search path: a file in it, such as click.py, must not replace a library that
    Holdfast imports later. The app's own module is loaded from it all the same.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    top = name.partition(".")[0]
    spec = None if top in sys.modules else PathFinder.find_spec(top, [here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules[top] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(top, None)
            raise
    return importlib.import_module(name)


def _broken(module: str, error: Exception | SystemExit) -> BadInput:
    return BadInput("app", f"{module} cannot be imported ({error_text(error)})", f"see that `python -m {module}` works")


def _others(module: str) -> str:
    names = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, App)]
    return f"use {' or '.join(f'{module}:{name}' for name in names)}" if names else 'make one: app = App("name")'
