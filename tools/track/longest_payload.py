"""A job of the longest payload that may be submitted, on its way to a worker."""

from __future__ import annotations

from holdfast.plane.bus.envelope import rows_of
from holdfast.plane.model.records import PAYLOAD_BYTES_MAX, Message


def test_the_longest_payload_fits_into_the_message_that_carries_it() -> None:
    """A message has room for more than a payload."""
    payload = "a" * (PAYLOAD_BYTES_MAX - len('""'))
    message = Message("j-1:1", "work.default", {"job": "j-1", "attempt": 1, "payload": payload})
    assert rows_of([message], 0)
