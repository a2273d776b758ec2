"""How many bytes a value takes as JSON, and whether it can be stored at all. Pure.

What a run hands on (a payload, a message, an input, an output) is measured where it is made, so that a value that no
store will take fails the step that made it, and not whoever stores it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

VALUE_BYTES_MAX: Final = 1_000_000  # of one value that is handed on
RUN_BYTES_MAX: Final = 8_000_000  # of all that a run keeps: the outputs of its steps and the items of its fan-outs

_UNSTORABLE: Final = re.compile("\\\\u0000|[\ud800-\udfff]")


class Unstorable(ValueError):
    """A value cannot be stored."""


def json_size(value: Any, most: int = VALUE_BYTES_MAX) -> int:
    """Its size in bytes, or `Unstorable`."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unstorable(f"cannot be written as JSON ({error})") from None
    if _UNSTORABLE.search(text) is not None:
        raise Unstorable("contains a zero character or half a surrogate pair")
    size = len(text.encode())
    if size > most:
        raise Unstorable(f"takes {size} bytes, and there is room for {max(most, 0)}")
    return size
