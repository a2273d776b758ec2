"""The size of campaigns: checks that are repeated with more seeds, more examples or more rounds.

Every check runs in `make test`. Campaigns are small there, and full in `make test-full`, which sets `CAMPAIGNS=full`.
A test that must find each kind of fault or outcome in its worlds is no repetition: it has one size.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

FULL: Final = os.environ.get("CAMPAIGNS") == "full"


def campaign(small: T, full: T) -> T:
    """The size of one campaign in this run."""
    return full if FULL else small
