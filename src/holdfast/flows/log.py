"""Log lines: a fixed text with fields, limited in rate.

A line is `text: name=value name=value`. The text never changes, so it can be searched for. The record has the same
fields as `record.holdfast`, for programs. An error is a field; an error that is not a store error also comes with its
traceback, once per window. The number of lines is limited (`core.log_rate`) for each logger, text and kind of error.

Does not promise that a line is written: logging may be switched off, or a handler may be broken, and this never raises
because of it. No token is ever passed here. Clock: the log record's own, which is the host's wall clock.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from holdfast.core.log_rate import LogRate
from holdfast.errors import BackendError, Closed
from holdfast.types import NS

LEFT_OUT: Final = "%d more like the following were not logged"
KINDS_MAX: Final = 1000  # texts are fixed, so there are a few dozen; a field in a text by mistake must not fill memory
VALUE_CHARS_MAX: Final = 1000

_EXPECTED: Final = (BackendError, Closed)  # a store is unavailable, or was closed: the text is enough
_rates: dict[tuple[str, ...], LogRate] = {}


def log_event(log: logging.Logger, level: int, text: str, error: BaseException | None = None, /, **fields: Any) -> bool:
    """Log a line, unless there were many like it recently. Returns whether it was logged."""
    return log_fields(log, level, text, fields, error, stacklevel=2)


def log_fields(
    log: logging.Logger,
    level: int,
    text: str,
    fields: Mapping[str, object],
    error: BaseException | None = None,
    *,
    per: str = "",
    rate: LogRate | None = None,
    stacklevel: int = 1,
) -> bool:
    """`log_event` with a separate limit for each value of `per` (a few values), or with a `rate` of the caller."""
    try:
        return _write(log, level, text, fields, error, per, rate, stacklevel + 2)
    except Exception:  # noqa: BLE001 - a broken filter or handler of the user must not break the caller
        return False


def _write(
    log: logging.Logger,
    level: int,
    text: str,
    fields: Mapping[str, object],
    error: BaseException | None,
    per: str,
    rate: LogRate | None,
    stacklevel: int,
) -> bool:
    if not log.isEnabledFor(level):
        return False
    file, number, function, _ = log.findCaller(stacklevel=stacklevel)
    written_fields = dict(fields) if error is None else {**fields, "error": error_text(error)}
    shown = shown_fields(written_fields)
    form, values = ("%s: %s", (text, shown)) if shown else ("%s", (text,))
    extra = {"holdfast": written_fields, "holdfast_event": text}
    record = log.makeRecord(log.name, level, file, number, form, values, None, function, extra)
    if not log.filter(record):  # filtered lines must not use up the rate of the others
        return False
    unexpected = error is not None and not isinstance(error, _EXPECTED)
    rate = _rate_of(log.name, text, per, "" if error is None else type(error).__name__) if rate is None else rate
    entry = rate.enter(round(record.created * NS), traced=unexpected)
    if entry.left_out:
        log.log(level, LEFT_OUT, entry.left_out, stacklevel=stacklevel, extra={"holdfast": {"of": text}})
    if entry.written:
        if entry.traced and error is not None:
            record.exc_info = (type(error), error, error.__traceback__)
        log.callHandlers(record)
    return entry.written


def forget_rates() -> None:
    """Forget all counted lines. For tests, so that their lines do not count for each other."""
    _rates.clear()


def error_text(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def shown_fields(fields: Mapping[str, object]) -> str:
    """The fields of a line without empty ones, escaped so that they stay on one line."""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items() if value is not None and value != "")


class OutageLog:
    """Log lines about an outage of something that is called repeatedly.

    One line when it begins, one now and then while it lasts, and one at its end, with the number of failures.
    """

    __slots__ = ("_begun", "_fields", "_level", "_log", "_logged", "_once", "_over", "_rate", "met_times")

    def __init__(
        self,
        log: logging.Logger,
        begun: str,
        over: str,
        /,
        *,
        level: int = logging.WARNING,
        once: bool = False,
        **fields: Any,
    ) -> None:
        """`once`: it is not logged again while it lasts."""
        self._log = log
        self._once = once
        self._begun = begun
        self._over = over
        self._level = level
        self._fields = fields
        self._rate = LogRate(lines=1)
        self._logged = False
        self.met_times = 0

    def met(self, error: BaseException | None = None, /, **fields: Any) -> None:
        """One more failure."""
        self.met_times += 1
        if self._once and self._logged:
            return
        logged = {**self._fields, **fields}
        self._logged |= log_fields(self._log, self._level, self._begun, logged, error, rate=self._rate, stacklevel=2)

    def ended(self, /, **fields: Any) -> None:
        """It answers again. Logged only if the failure was logged."""
        if not self.met_times:
            return
        times, self.met_times = self.met_times, 0
        if self._logged:
            self._logged = False
            logged = {**self._fields, **fields, "failures": times}
            log_fields(self._log, min(self._level, logging.WARNING), self._over, logged, rate=LogRate(), stacklevel=2)


def _rate_of(logger: str, *kind: str) -> LogRate:
    rate = _rates.get((logger, *kind))
    if rate is None:
        key = (logger, *kind) if len(_rates) < KINDS_MAX else (logger,)
        rate = _rates.setdefault(key, LogRate())
    return rate


def _shown(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) > VALUE_CHARS_MAX:
        text = text[: VALUE_CHARS_MAX - 1] + "…"
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
