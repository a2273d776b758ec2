"""A fence on every message: stamping, reading the headers of any bus, and inboxes that refuse what is stale."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.core import failpoints
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadInput, FencedOut, LeaseLost, Unavailable, Unfenced
from holdfast.guards import CarriedFence
from holdfast.guards.aio import messages as aio
from holdfast.guards.http.headers import presented
from holdfast.guards.messages import Inbox, InboxStatistics, byte_pairs, carried_in, stamped
from holdfast.guards.records import SqliteRecord, ThreadedRecord
from holdfast.guards.settings import sql
from holdfast.guards.sqlite import GuardedTable
from holdfast.types import KEY_BYTES_MAX, check_key
from support.fixtures.guards import carried

A, B = carried(1), carried(2)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[SqliteRecord]:
    record = SqliteRecord(tmp_path / "fences.db")
    yield record
    record.close()


@pytest.fixture
def inbox(record: SqliteRecord) -> Inbox[CarriedFence]:
    return Inbox(record, "billing")


# The producer.


def test_a_held_lease_stamps_what_it_sends_with_lock_and_fence_and_without_its_token(lease: holdfast.Lease) -> None:
    headers = stamped(lease, {"Content-Type": "text/plain"})
    assert headers == {
        "Content-Type": "text/plain",
        "Holdfast-Key": "invoice:42",
        "Holdfast-Fence": str(lease.fence),
    }
    assert carried_in(headers) == CarriedFence("invoice:42", lease.fence)


def test_a_lost_lease_stamps_nothing(released: holdfast.Lease) -> None:
    with pytest.raises(LeaseLost):
        stamped(released)


def test_a_lease_without_a_fence_stamps_nothing(degraded: holdfast.DegradedLease) -> None:
    with pytest.raises(Unfenced):
        stamped(degraded)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", [None, 17, "invoice:42", {"key": "x", "fence": 1}])
def test_what_is_not_a_lease_stamps_nothing(thing: Any) -> None:
    with pytest.raises(BadInput) as refused:
        stamped(thing)
    assert refused.value.field == "lease"


def test_a_message_that_is_passed_on_carries_the_fence_of_who_passes_it_on() -> None:
    arrived = {"holdfast-key": "other:1", "HOLDFAST-FENCE": "9", "trace": "abc"}
    assert stamped(A, arrived) == {"trace": "abc", "Holdfast-Key": "invoice:42", "Holdfast-Fence": "1"}


@pytest.mark.parametrize("headers", ["text", ["x"], {"x": 1}, {"x": b"1"}, {b"x": "1"}, {"": "1"}])
def test_headers_to_send_are_text(headers: Any) -> None:
    with pytest.raises(BadInput) as refused:
        stamped(A, headers)
    assert refused.value.field == "headers"


keys = st.text(min_size=1, max_size=100).filter(
    lambda text: text.isprintable() and not set("{}") & set(text) and len(text.encode()) <= KEY_BYTES_MAX
)


@given(key=keys, fence=st.integers(0, FENCE_MAX))
def test_every_key_and_every_fence_survives_the_way_and_reads_the_same_as_in_http(key: str, fence: int) -> None:
    sent = CarriedFence(check_key("key", key), fence)
    headers = stamped(sent)
    assert carried_in(headers) == sent
    assert carried_in(byte_pairs(headers)) == sent
    assert presented([(name.lower().encode(), value.encode()) for name, value in headers.items()]) == sent
    assert all(value.isascii() and value.isprintable() and " " not in value for value in headers.values())


# What arrives.


@pytest.mark.parametrize(
    "headers",
    [
        {"Holdfast-Key": "invoice:42", "Holdfast-Fence": "1"},  # NATS, AMQP
        {"holdfast-key": b"invoice:42", "holdfast-fence": b"1", "x-death": [{"count": 3}], "priority": 7},  # AMQP
        [("Holdfast-Key", b"invoice:42"), ("trace", None), ("Holdfast-Fence", b"1")],  # Kafka
        (("Holdfast-Key", "invoice:42"), ("Holdfast-Fence", "1")),
        {b"Holdfast-Key": b"invoice:42", b"Holdfast-Fence": b"1", b"body": b"\xff\0"},  # the fields of a Redis stream
        {"Holdfast-Key": ["invoice:42"], "Holdfast-Fence": ["1"]},  # NATS, as lists
    ],
)
def test_headers_of_every_bus_are_read(headers: Any) -> None:
    assert carried_in(headers) == A


@pytest.mark.parametrize("headers", [None, {}, [], {"trace": "abc"}, {b"trace": b"abc"}])
def test_headers_without_a_fence_have_none(headers: Any) -> None:
    assert carried_in(headers) is None


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"Holdfast-Key": "invoice:42"}, "Holdfast-Fence"),
        ({"Holdfast-Fence": "1"}, "Holdfast-Key"),
        ({"Holdfast-Key": "invoice:42", "Holdfast-Fence": 1}, "Holdfast-Fence"),
        ({"Holdfast-Key": "invoice:42", "Holdfast-Fence": None}, "Holdfast-Fence"),
        ({"Holdfast-Key": "invoice:42", "Holdfast-Fence": "-1"}, "Holdfast-Fence"),
        ({"Holdfast-Key": "invoice:42", "Holdfast-Fence": "1.0"}, "Holdfast-Fence"),
        ({"Holdfast-Key": "invoice:42", "Holdfast-Fence": str(FENCE_MAX + 1)}, "Holdfast-Fence"),
        ({"Holdfast-Key": "invoice:42", "Holdfast-Fence": "١"}, "Holdfast-Fence"),
        ({"Holdfast-Key": "", "Holdfast-Fence": "1"}, "Holdfast-Key"),
        ({"Holdfast-Key": "a b", "Holdfast-Fence": "1"}, "Holdfast-Key"),
        ({"Holdfast-Key": "%FF", "Holdfast-Fence": "1"}, "Holdfast-Key"),
        ({"Holdfast-Key": ["a", "b"], "Holdfast-Fence": "1"}, "Holdfast-Key"),
        ([("Holdfast-Key", "a"), ("holdfast-key", "b"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ("Holdfast-Key", "headers"),
        (7, "headers"),
        ([7], "headers"),
        ([("a", "b", "c")], "headers"),
    ],
)
def test_nonsense_for_a_fence_is_refused_and_counted(inbox: Inbox[CarriedFence], headers: Any, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        inbox.admit(headers)
    assert refused.value.field == field
    assert inbox.statistics() == InboxStatistics(malformed=1)


def test_a_message_without_a_fence_is_refused(inbox: Inbox[CarriedFence]) -> None:
    with pytest.raises(BadInput, match="Holdfast-Key: is missing"):
        inbox.admit({"trace": "abc"})
    assert inbox.statistics() == InboxStatistics(malformed=1)


# The consumer.


@pytest.mark.requires("R58", "R65")
def test_a_message_of_an_older_holder_is_refused_after_one_of_a_newer(
    inbox: Inbox[CarriedFence], caplog: pytest.LogCaptureFixture
) -> None:
    assert inbox.admit(stamped(A)) == A
    assert inbox.admit(stamped(B)) == B
    assert inbox.admit(stamped(B)) == B
    with pytest.raises(FencedOut) as refused:
        inbox.admit(stamped(A))
    assert (refused.value.fence, refused.value.seen, refused.value.key) == (1, 2, "invoice:42")
    assert inbox.statistics() == InboxStatistics(entered=3, refused=1)
    assert "refused a stale read: guard=billing " in caplog.text
    assert inbox.seen("invoice:42") == 2
    assert inbox.admit(stamped(carried(1, "invoice:43"))) == carried(1, "invoice:43")


def test_what_was_seen_outlives_the_consumer_and_is_shared_by_its_group(record: SqliteRecord, tmp_path: Path) -> None:
    Inbox(record, "billing").admit(stamped(B))
    again = SqliteRecord(tmp_path / "fences.db")
    with closing(again):
        with pytest.raises(FencedOut):
            Inbox(again, "billing").admit(stamped(A))
        assert Inbox(again, "mailing").admit(stamped(A)) == A


def test_a_stale_message_can_be_dropped(record: SqliteRecord) -> None:
    inbox = Inbox(record, on_stale="drop")
    with inbox.section(stamped(B)) as fence:
        assert fence == B
    with inbox.section(stamped(A)) as fence:
        assert fence is None
    assert inbox.statistics() == InboxStatistics(entered=1, refused=1, dropped=1)
    with pytest.raises(BadInput):
        inbox.admit({})


def test_a_handler_gets_the_message_and_its_fence(record: SqliteRecord) -> None:
    inbox = Inbox(record, on_stale="drop")

    @inbox.handler(lambda message: message["headers"])
    def handle(message: dict[str, Any], fence: CarriedFence, *, loud: bool = False) -> str:
        """Handle it."""
        return f"{message['body']} under {fence.fence}{'!' * loud}"

    assert handle({"headers": stamped(B), "body": "pay"}, loud=True) == "pay under 2!"
    assert handle({"headers": stamped(A), "body": "pay"}) is None
    assert (handle.__name__, handle.__doc__) == ("handle", "Handle it.")


@pytest.mark.requires("R69")
def test_the_fence_of_a_message_is_handed_on_to_the_guard_of_the_storage(
    inbox: Inbox[CarriedFence], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as data:
        data.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER, holdfast_fence INTEGER)")
        data.execute(sql("ledger_sqlite"))
        table = GuardedTable(data, "invoices", key="invoice:{id}")
        with inbox.section(stamped(A)) as older:
            # This handler is slow; the next holder's message is handled by another consumer meanwhile.
            with inbox.section(stamped(B)) as newer:
                table.upsert(newer, 42, {"total": 2})
            with pytest.raises(FencedOut):
                table.upsert(older, 42, {"total": 1})
        assert data.execute("SELECT total, holdfast_fence FROM invoices").fetchall() == [(2, 2)]


def test_a_message_is_not_admitted_when_its_fence_cannot_be_noted(tmp_path: Path, record: SqliteRecord) -> None:
    inbox = Inbox(record)
    inbox.admit(stamped(A))
    (tmp_path / "gone").mkdir()
    broken = SqliteRecord(tmp_path / "gone" / "fences.db")
    (tmp_path / "gone").rmdir()
    with pytest.raises(holdfast.BackendError):
        Inbox(broken).admit(stamped(A))


def test_a_consumer_that_dies_after_the_fence_was_noted_can_take_the_message_again(inbox: Inbox[CarriedFence]) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    with failpoints.armed("guard.noted", die), pytest.raises(KeyboardInterrupt):
        inbox.admit(stamped(A))
    assert inbox.admit(stamped(A)) == A


@pytest.mark.parametrize("wrong", [None, "fences.db", SqliteRecord])
def test_an_inbox_needs_a_record(wrong: Any) -> None:
    for kind in (Inbox, aio.Inbox):
        with pytest.raises(BadInput) as refused:
            kind(wrong)
        assert refused.value.field == "record"


def test_a_blocking_inbox_does_not_take_a_record_of_an_event_loop(record: SqliteRecord) -> None:
    with pytest.raises(BadInput, match="is for an event loop"):
        Inbox(ThreadedRecord(record))


def test_what_to_do_with_a_stale_message_is_one_of_two(record: SqliteRecord) -> None:
    with pytest.raises(BadInput) as refused:
        Inbox(record, on_stale="ignore")  # type: ignore[call-overload]
    assert refused.value.field == "on_stale"


# The awaited color.


@pytest.mark.asyncio
async def test_an_awaited_inbox_admits_refuses_and_drops(record: SqliteRecord) -> None:
    async with aio.Inbox(record, "billing") as inbox:
        async with inbox.section(stamped(B)) as fence:
            assert fence == B
        with pytest.raises(FencedOut):
            await inbox.admit(stamped(A))
        with pytest.raises(BadInput):
            await inbox.admit(None)
        assert await inbox.seen("invoice:42") == 2
        assert inbox.statistics() == InboxStatistics(entered=1, refused=1, malformed=1)
    async with aio.Inbox(record, "billing", on_stale="drop") as dropping:

        @dropping.handler(lambda message: message)
        async def handle(message: dict[str, str], fence: CarriedFence) -> int:
            return fence.fence

        assert [await handle(stamped(each)) for each in (B, A)] == [2, None]
        assert dropping.statistics() == InboxStatistics(entered=1, refused=1, dropped=1)


@pytest.mark.asyncio
async def test_an_awaited_record_that_does_not_answer_lets_nothing_through() -> None:
    class Silent:
        blocking = False

        async def note(self, place: str, resource: str, fence: int) -> int:
            raise Unavailable("no answer")

        async def seen(self, place: str, resource: str) -> int | None:
            return None

    async with aio.Inbox(Silent()) as inbox:
        with pytest.raises(Unavailable):
            await inbox.admit(stamped(A))
        assert inbox.statistics() == InboxStatistics()
