"""TOML that somebody wrote, read or refused. Pure.

Promises: whatever the text is, the answer is a table or `NotToml` with what is wrong, and no other error. The standard
library keeps that promise for the grammar only: it answers a number of five thousand digits and brackets within
brackets with errors of the interpreter, which a caller who expects errors of TOML lets through. A whole number has 64
bits, as TOML demands of its readers, so that each can be shown, compared and stored; tables and lists are at most
`DEPTH_MAX` deep, so that whoever walks through them gets out again.
"""

from __future__ import annotations

import tomllib
from typing import Any, Final

DEPTH_MAX: Final = 50
_WHOLE_MAX: Final = 2**63 - 1


class NotToml(ValueError):
    """A text is no TOML; `str()` says why, and where if that is known."""


def toml_of(text: str) -> dict[str, Any]:
    """The table that a text is, or `NotToml`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotToml(str(error)) from None
    except ValueError:  # of `int`, which reads no more than some thousand digits
        raise NotToml("has a number of too many digits") from None
    except RecursionError:
        raise NotToml(f"is nested too deeply, use at most {DEPTH_MAX} levels") from None
    _check(table)
    return table


def _check(table: dict[str, Any]) -> None:
    level: list[Any] = [table]
    for _ in range(DEPTH_MAX):
        inside = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
        if any(isinstance(each, int) and not -_WHOLE_MAX - 1 <= each <= _WHOLE_MAX for each in inside):
            raise NotToml("has a whole number that does not fit into 64 bits")
        level = [each for each in inside if isinstance(each, dict | list)]
        if not level:
            return
    raise NotToml(f"is nested too deeply, use at most {DEPTH_MAX} levels")
