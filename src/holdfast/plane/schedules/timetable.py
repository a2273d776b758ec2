"""Due times from cron expressions, with time zones.

Promises: an expression or a zone that cannot be used is refused with the field and the fix, also one that never comes
(30 February). Daylight-saving time follows Debian cron. A job at a fixed time (neither the minute nor the hour begins
with `*`) runs once a day: at the first of two equal local times, and right after the gap if its local time does not
exist. Other jobs run by elapsed time: `*/15 * * * *` runs every 15 minutes through both changes. The due times after an
instant do not depend on the instant from which they were computed before.

Does not promise more fields than five: seconds and years are refused.

Clock: none. Reads the time zone database of the system, or that of the package tzdata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.errors import BadInput, Misconfigured
from holdfast.types import NS

CRON_CHARS_MAX: Final = 200
ZONE_CHARS_MAX: Final = 80
FIELDS: Final = "minute hour day-of-month month day-of-week"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_S: Final = 253_000_000_000  # in the year 9987
_SHORT: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron:
    """The due times of a cron expression in a time zone."""

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        """`BadInput` if one of them cannot be used."""
        self.expression = _checked_expression(expression)
        self.zone = check_zone(zone)
        self._zone = _zone(zone)
        self._iterate = _iterator()
        self._text = _SHORT.get(self.expression.lower(), self.expression)
        _probe(self._iterate, self._text, self.expression)

    def following(self, after_ns: int) -> Iterator[int]:
        """See `rules.Timetable`."""
        second = after_ns // NS
        if not 0 <= second < _LAST_S:
            return
        start = (_EPOCH + timedelta(seconds=second)).astimezone(self._zone)
        try:
            for due in self._iterate(self._text, start):
                found = _seconds(due)
                # A due time in a gap is moved to its end, where another one may be. At the second of two equal local
                # times, the first one has passed.
                if found > second:
                    second = found
                    yield found * NS
        except OverflowError:  # the calendar ends in the year 9999
            return

    def __repr__(self) -> str:
        return f"<Cron {self.expression!r} {self.zone}>"


def _seconds(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(seconds=1)


def check_zone(zone: object) -> str:
    """The name of a time zone, or `BadInput`."""
    if not isinstance(zone, str) or not zone or len(zone) > ZONE_CHARS_MAX:
        raise BadInput("tz", f"{zone!r:.60} is not a time zone", _ZONE_FIX)
    _zone(zone)
    return zone


_ZONE_FIX: Final = "give a name such as Europe/Berlin, or UTC"


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        if not _has_zones():
            raise Misconfigured(
                f"the time zone {name} cannot be read: this system has no time zone database; pip install tzdata"
            ) from None
        raise BadInput("tz", f"{name!r:.60} is not a time zone", _ZONE_FIX) from None


def _has_zones() -> bool:
    try:
        ZoneInfo("Europe/Berlin")
    except (ZoneInfoNotFoundError, OSError):
        return False
    return True


def _iterator() -> Callable[[str, datetime], Any]:
    try:
        from cronsim import CronSim
    except ModuleNotFoundError as error:
        raise Misconfigured('cron expressions need cronsim: pip install "holdfast[plane]"') from error
    return CronSim


def _checked_expression(expression: object) -> str:
    if not isinstance(expression, str) or not expression.isascii() or not expression.isprintable():
        raise BadInput("cron", f"{expression!r:.60} is not a cron expression", f"give five fields: {FIELDS}")
    text = " ".join(expression.split())
    if text.startswith("@"):
        if text.lower() not in _SHORT:
            raise BadInput("cron", f"{text!r:.60} is not known", f"use {', '.join(_SHORT)} or five fields: {FIELDS}")
        return text.lower()
    if len(text) > CRON_CHARS_MAX:
        raise BadInput("cron", f"is {len(text)} characters long", f"use at most {CRON_CHARS_MAX}")
    if (count := len(text.split())) != 5:
        raise BadInput("cron", f"{text!r:.60} has {count} fields", f"give five fields: {FIELDS}")
    return text


def _probe(following: Callable[[str, datetime], Any], text: str, shown: str) -> None:
    """Refuse an expression that is not valid, or that never comes."""
    from cronsim import CronSimError

    try:
        first = next(iter(following(text, datetime(2024, 1, 1, tzinfo=UTC))), None)
    except (CronSimError, ValueError, TypeError, IndexError, AssertionError) as error:
        problem = str(error)
        if not problem.startswith("Bad "):
            problem = "Bad expression"
        field = problem.removeprefix("Bad ")
        fix = f"give five fields: {FIELDS}; for example */5 * * * *"
        if field == "day-of-month":
            fix = "give days from 1 to 31 that the months have, L for the last one, or *"
        raise BadInput("cron", f"{shown!r:.80} has a bad {field}", fix) from None
    if first is None:
        raise BadInput("cron", f"{shown!r:.80} never comes", "give a day that its months have")
