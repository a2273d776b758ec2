"""The jitter of busy retries in one process: checked against the settings, and switched at run time.

Promises: a jitter that the settings rule out is refused (`BadInput`) and changes nothing. That is a jitter that is not
below the delay, exceeds what a TTL allows, or breaks a promised takeover time.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.lease.error_policy import BUSY_JITTER_MAX_NS
from holdfast.core.retry_delays import SwitchableDelays
from holdfast.errors import BadInput
from holdfast.plane.policy.model import BUSY_JITTER
from holdfast.plane.settings.consistency import problems
from holdfast.plane.settings.settings import Settings
from holdfast.types import NS, Duration, duration_ns


def check_jitter(settings: Settings, jitter: Duration) -> int:
    """The jitter in nanoseconds. `BadInput` if these settings rule it out."""
    jitter_ns = duration_ns(BUSY_JITTER, jitter, high_ns=BUSY_JITTER_MAX_NS)
    fixed = {str(each) for each in _problems(settings, 0)}
    for each in _problems(settings, jitter_ns):
        if str(each) not in fixed:
            raise BadInput(BUSY_JITTER, each.problem, each.fix)
    return jitter_ns


def _problems(settings: Settings, jitter_ns: int) -> list[BadInput]:
    return problems(_with_jitter(settings, jitter_ns), only_database=True)


def _with_jitter(settings: Settings, jitter_ns: int) -> Settings:
    return replace(settings, scheduler=replace(settings.scheduler, busy_jitter=jitter_ns / NS))


class BusyJitter:
    """The retry delays of a process. Their jitter follows the policy of the plane."""

    def __init__(self, settings: Settings) -> None:
        self.delays = SwitchableDelays(_with_jitter(settings, 0).scheduler.delays)
        self.seconds = 0.0
        self._settings = settings

    def use(self, seconds: float) -> None:
        """Switch the jitter. `BadInput` if the settings rule it out."""
        self.delays.use_jitter(check_jitter(self._settings, seconds))
        self.seconds = seconds
