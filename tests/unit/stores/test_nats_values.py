"""What a bucket of NATS says, what follows from it, and which URLs and buckets are refused. Without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import BadInput
from holdfast.stores.nats.bucket import BucketNames, lease_stream, problem
from holdfast.stores.nats.revisions import Revision, Revisions, ServerTime, left_ns, shown_ns
from holdfast.stores.nats.url import parse_nats_url
from holdfast.stores.nats.values import (
    DELETED,
    OPERATION,
    Foreign,
    Free,
    HeldValue,
    decoded,
    encoded,
    held,
    key_of,
    key_token,
    mark_of,
)
from holdfast.stores.registry import redacted
from holdfast.testing.conformance.names import TAILS
from holdfast.types import NS, AcquireRequest, AuditRecord, fingerprint

HELD = HeldValue("me@host:1/a", "billing", 30 * NS, 7, mark_of("token"), None)
RECORD = AuditRecord(5, "force_release", "k", "ada", "stuck", "me@host:1/a", 9, 0)
NAMES = BucketNames("b")


# Messages.


@pytest.mark.parametrize("content", [HELD, replace(HELD, fence=12, mark="")])
def test_what_is_written_for_a_held_key_is_read_again(content: HeldValue) -> None:
    assert decoded(encoded(content, 10**18), {}) == content


@pytest.mark.parametrize("content", [Free(), Free(by=mark_of("t")), Free(forced=RECORD)])
def test_what_is_written_for_a_free_key_is_read_again(content: Free) -> None:
    assert decoded(encoded(content, 0), {OPERATION: DELETED}) == content


def test_no_message_holds_a_token_and_its_digest_begins_with_the_fingerprint() -> None:
    ask = AcquireRequest("k", "5ecret", "me@host:1/a", "billing", NS)
    assert b"5ecret" not in encoded(held(ask, 0), 0)
    assert mark_of("5ecret").startswith(fingerprint("5ecret"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"locked by hand",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"v":2,"owner":"o","family":"f","ttl_ns":1,"granted":1,"mark":"m"}',
        b'{"v":1,"owner":"o","family":"f","ttl_ns":-1,"granted":1,"mark":"m"}',
        b'{"v":1,"owner":"o","family":"f","ttl_ns":1,"granted":1,"mark":"m","fence":"9"}',
    ],
)
def test_a_value_of_another_program_holds_its_key_and_does_not_expire(data: bytes) -> None:
    content = decoded(data, {})
    assert isinstance(content, Foreign)
    assert left_ns(Revision(1, content, 0, 0), 10**18, ServerTime(10**18, 0)) is None


@pytest.mark.parametrize("headers", [{OPERATION: "DEL"}, {OPERATION: "PURGE"}, {"Nats-Marker-Reason": "MaxAge"}])
def test_a_deleted_key_is_free_whatever_its_message_says(headers: dict[str, str]) -> None:
    for data in (b"", b"x", b"[1]", b'{"forced":7}'):
        assert decoded(data, headers) == Free()


@pytest.mark.parametrize("tail", TAILS)
def test_every_name_is_one_safe_part_of_a_subject_and_is_found_again(tail: str) -> None:
    token = key_token(f"k{tail}")
    assert key_of(token) == f"k{tail}"
    assert token.isascii()
    assert not set(token) & set(" .*>\r\n")


@pytest.mark.parametrize("token", ["a b", "=", "=4", "=zz", "=ff", "a.b", "é", "=61", "=3a"])
def test_a_part_that_no_name_has_is_no_key(token: str) -> None:
    assert key_of(token) is None


# Expiry.


def test_a_message_that_was_watched_for_its_ttl_may_be_replaced_and_not_before() -> None:
    revision = Revision(5, HELD, since_ns=100)
    assert left_ns(revision, 100, None) == 30 * NS
    assert left_ns(revision, 100 + 30 * NS - 1, None) == 1
    assert left_ns(revision, 100 + 30 * NS, None) == 0


@pytest.mark.requires("R2")
def test_by_the_servers_clock_it_takes_as_much_longer_as_their_clocks_may_differ() -> None:
    stored = 10**18
    revision = Revision(5, HELD, since_ns=0, stored_ns=stored)

    def left(age_ns: int) -> int | None:
        return left_ns(revision, 0, ServerTime(stored + age_ns, 0))

    assert left(0) == 30 * NS  # just stored: the rule of watching is the shorter one
    assert left(30 * NS) == 10 * NS
    assert left(40 * NS) == 0
    assert left(-3600 * NS) == 30 * NS  # a clock that was set back makes nothing longer than watching
    assert shown_ns(revision, 0, ServerTime(stored + 20 * NS, 0)) == 10 * NS
    assert shown_ns(revision, 0, ServerTime(stored + 35 * NS, 0)) == 0


def test_the_time_of_the_servers_is_counted_on_with_the_monotonic_clock() -> None:
    revision = Revision(5, HELD, since_ns=0, stored_ns=0)
    server = ServerTime(wall_ns=25 * NS, read_ns=0)
    assert left_ns(revision, 4 * NS, server) == 11 * NS
    assert left_ns(revision, 15 * NS, server) == 0


@pytest.mark.requires("R2", "R7")
def test_a_message_that_is_seen_again_keeps_the_time_of_its_first_sight() -> None:
    known = Revisions()
    known.learned("k", Revision(5, HELD, 100))
    assert known.learned("k", Revision(5, HELD, 900, stored_ns=3)) == Revision(5, HELD, 100, 3)
    assert known.learned("k", Revision(6, HELD, 950)) == Revision(6, HELD, 950)
    assert known.learned("k", Revision(5, HELD, 999)).since_ns == 999  # an old one came back: its time begins again


def test_only_so_many_keys_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.nats.revisions.KNOWN_MAX", 3)
    known = Revisions()
    for number in range(5):
        known.learned(f"k{number}", Revision(number + 1, Free(), 0))
        known.learned("k0", Revision(1, Free(), 0))  # in use
    assert [known.get(f"k{number}") is not None for number in range(5)] == [True, False, False, True, True]


def test_the_fence_is_the_sequence_of_the_first_message_of_a_grant() -> None:
    assert Revision(5, HELD, 0).fence == 5
    assert Revision(9, replace(HELD, fence=5), 0).fence == 5


# Buckets.


def test_a_bucket_as_it_is_created_has_no_problem() -> None:
    wanted = lease_stream(NAMES, 3, 1_790_000_000 * NS)
    assert problem(wanted, NAMES, 3) is None
    assert problem(wanted, NAMES, 1) is None
    assert wanted["first_seq"] == 1_790_000_000_000_000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"subjects": ["$KV.b.>", "other"]}, "subjects"),
        ({"mirror": {"name": "x"}}, "mirror"),
        ({"allow_msg_ttl": False}, "2.11"),
        ({"max_age": 60 * NS}, "maximum age"),
        ({"max_msgs": 10, "discard": "old"}, "full"),
        ({"max_bytes": 10, "discard": "old"}, "full"),
        ({"retention": "workqueue"}, "replaced"),
        ({"storage": "memory"}, "memory"),
        ({"first_seq": 1}, "fences would go back"),
        ({"num_replicas": 2}, "replicas"),
    ],
)
def test_a_bucket_that_cannot_keep_leases_is_refused_with_the_fix(change: dict[str, object], word: str) -> None:
    found = problem({**lease_stream(NAMES, 3, 10**18), **change}, NAMES, 3)
    assert found is not None
    assert word in found


# URLs.


def test_a_url_names_servers_bucket_and_credentials_for_all_of_them() -> None:
    address = parse_nats_url("nats://ada:s%40cret@one,two:4333,[::1]:5?bucket=locks&replicas=3")
    assert address.servers == ("nats://one:4222", "nats://two:4333", "nats://[::1]:5")
    assert dict(address.credentials) == {"user": "ada", "password": "s@cret"}
    assert (address.bucket, address.replicas, address.tls) == ("locks", 3, None)
    assert "cret" not in f"{address} {address!r}"
    assert dict(parse_nats_url("nats://t0ken@one").credentials) == {"token": "t0ken"}
    assert parse_nats_url("nats://").servers == ("nats://localhost:4222",)
    assert parse_nats_url("tls://one").tls is not None


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("http://one", "url"),
        ("nats://one/path", "url"),
        ("nats://one#x", "url"),
        ("nats://[::1", "url"),
        ("nats://one:0", "url host"),
        ("nats://one:99999", "url host"),
        ("nats://one,,two", "url host"),
        ("nats://one,one:4222", "url host"),
        ("nats://a:b@one,c:d@two", "url user"),
        ("nats://:b@one", "url user"),
        ("nats://a:@one", "url user"),
        ("nats://one?bucket=a.b", "url option bucket"),
        ("nats://one?bucket=", "url option bucket"),
        ("nats://one?replicas=6", "url option replicas"),
        ("nats://one?bukket=x", "url option"),
        ("nats://one?bucket=a&bucket=b", "url option bucket"),
        ("nats://one?ssl_ca_certs=/x", "url option ssl_ca_certs"),
        ("tls://one?ssl_ca_certs=/no/such/file", "url option ssl_ca_certs"),
        ("nats://" + ",".join(f"h{number}" for number in range(17)), "url host"),
    ],
)
def test_a_url_that_cannot_work_is_refused_by_the_part(url: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_nats_url(url)
    assert caught.value.field == field


def test_no_shown_url_has_a_token_or_a_password() -> None:
    for url in ("nats://s3cret@one:4222", "tls://ada:s3cret@one,two", "nats://ada:s3cr@et@one"):
        assert "s3cr" not in redacted(url)
