"""Leases in a SQLite file: ownership, fences, and the clocks they are judged by, with time that the test moves."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import Misconfigured
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore
from holdfast.types import NS, AcquireRequest, Busy, Grant, Instant, Renewal

CALL = 5 * NS
DAY = 86_400 * NS


class MovedClock:
    """Three clocks that stand still until the test moves them."""

    def __init__(self) -> None:
        self.instant = Instant(mono=1_000 * NS, boot=2_000 * NS, wall=1_700_000_000 * NS)

    def now(self) -> Instant:
        return self.instant

    def move(self, *, mono: int = 0, boot: int = 0, wall: int = 0) -> None:
        self.instant = Instant(self.instant.mono + mono, self.instant.boot + boot, self.instant.wall + wall)

    def pass_by(self, ns: int) -> None:
        self.move(mono=ns, boot=ns, wall=ns)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "leases.db")


Elsewhere = Callable[..., SqliteStore]


@pytest.fixture
def elsewhere(path: str, clock: MovedClock) -> Iterator[Elsewhere]:
    """Opens further stores on the same file; keywords say on what other ground they believe to run."""
    opened: list[SqliteStore] = []

    def open_one(**components: str) -> SqliteStore:
        store = SqliteEngine(path, clock=clock).blocking
        store.leases.judge._host = replace(store.leases.judge.host, **components)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        run_now(store.close())


@pytest.fixture
def store(elsewhere: Elsewhere) -> SqliteStore:
    return elsewhere()


def ask(token: str, key: str = "invoice:42", ttl: int = 30 * NS, ticket: str | None = None) -> AcquireRequest:
    return AcquireRequest(key, token, f"svc@host:1/{token}", "billing", ttl, ticket, 0 if ticket is None else 10 * NS)


def acquire(store: SqliteStore, wanted: AcquireRequest) -> Grant | Busy:
    return run_now(store.acquire(wanted, CALL))


def granted(store: SqliteStore, wanted: AcquireRequest) -> Grant:
    answer = acquire(store, wanted)
    assert isinstance(answer, Grant)
    return answer


def busy(store: SqliteStore, wanted: AcquireRequest) -> Busy:
    answer = acquire(store, wanted)
    assert isinstance(answer, Busy)
    return answer


def release(store: SqliteStore, token: str, key: str = "invoice:42", keep_ns: int = 0) -> bool:
    return run_now(store.release(key, token, None, keep_ns, CALL))


def renew(store: SqliteStore, token: str, key: str = "invoice:42", ttl: int = 30 * NS) -> bool | None:
    return run_now(store.renew_many([Renewal(key, token, "", ttl)], CALL))[0]


# Time.


def test_a_lease_ends_with_its_ttl_and_not_a_moment_before(store: SqliteStore, clock: MovedClock) -> None:
    granted(store, ask("a"))
    clock.pass_by(30 * NS - 1)
    assert busy(store, ask("b")).remaining_ns == 1
    clock.pass_by(1)
    granted(store, ask("b"))


def test_steps_of_the_wall_clock_neither_end_nor_extend_a_lease(store: SqliteStore, clock: MovedClock) -> None:
    granted(store, ask("a"))
    clock.move(wall=DAY)
    assert busy(store, ask("b")).remaining_ns == 30 * NS
    assert renew(store, "a") is True
    clock.move(wall=-2 * DAY)
    assert busy(store, ask("b")).remaining_ns == 30 * NS
    clock.move(mono=30 * NS, boot=30 * NS)
    granted(store, ask("b"))


def test_time_that_the_host_was_suspended_counts(store: SqliteStore, clock: MovedClock) -> None:
    granted(store, ask("a"))
    clock.move(boot=31 * NS, wall=31 * NS)
    granted(store, ask("b"))


def test_a_lease_of_an_earlier_boot_of_this_machine_is_free_immediately(
    elsewhere: Elsewhere,
) -> None:
    before = elsewhere(machine="m", boot="first", clock="m.first.0", process="")
    store = elsewhere(machine="m", boot="second", clock="m.second.0")
    granted(before, ask("a", ttl=DAY))
    assert run_now(store.inspect("invoice:42", CALL)) is None
    granted(store, ask("b"))
    assert renew(before, "a") is False


def test_an_earlier_boot_proves_nothing_on_a_file_that_other_machines_reach(
    elsewhere: Elsewhere,
) -> None:
    before = elsewhere(machine="m", boot="first", clock="m.first.0", process="")
    store = elsewhere(machine="m", boot="second", clock="m.second.0")
    granted(before, ask("a"))
    store.leases.file.shared = True
    with pytest.warns(RuntimeWarning, match="network file system"):
        assert busy(store, ask("b")).remaining_ns == 30 * NS


@pytest.mark.parametrize("name", ["f00dfeedf00dfeed.other.0", "-.-0123456789abcdef", "nonsense"])
def test_a_lease_on_another_clock_is_judged_by_the_wall_clock(
    store: SqliteStore, elsewhere: Elsewhere, clock: MovedClock, name: str
) -> None:
    other = elsewhere(clock=name, process="")
    first = granted(other, ask("a"))
    clock.move(boot=DAY, mono=DAY)  # our boot-time clock says nothing about theirs
    assert busy(store, ask("b")).remaining_ns == 30 * NS
    assert run_now(store.holdings("", 10, CALL))[0].remaining_ns == 30 * NS
    clock.move(wall=30 * NS)
    assert renew(store, "a") is False
    second = granted(store, ask("b"))
    assert second.fence > first.fence


def test_another_time_namespace_of_this_boot_is_another_clock(
    store: SqliteStore, elsewhere: Elsewhere, clock: MovedClock
) -> None:
    host = store.leases.judge.host
    other = elsewhere(clock=f"{host.machine or '-'}.{host.boot}.1")
    granted(other, ask("a"))
    clock.move(boot=DAY)
    assert busy(store, ask("b")).remaining_ns == 30 * NS


def test_a_lease_can_be_renewed_and_released_from_another_clock(store: SqliteStore, elsewhere: Elsewhere) -> None:
    other = elsewhere(clock="f00dfeedf00dfeed.other.0", process="")
    granted(other, ask("a"))
    granted(other, ask("b", key="invoice:43"))
    assert renew(store, "a", ttl=60 * NS) is True
    assert busy(store, ask("c")).remaining_ns == 60 * NS
    assert release(store, "a") is True
    assert release(store, "b", key="invoice:43", keep_ns=5 * NS) is True
    assert busy(store, ask("c", key="invoice:43")).remaining_ns == 5 * NS


# Ownership.


def test_the_same_token_gets_the_same_grant_again_with_a_new_expiry(store: SqliteStore, clock: MovedClock) -> None:
    first = granted(store, ask("a"))
    clock.pass_by(20 * NS)
    assert granted(store, ask("a")) == first
    assert busy(store, ask("b")).remaining_ns == 30 * NS


def test_the_same_token_after_its_lease_ran_out_gets_a_new_fence(store: SqliteStore, clock: MovedClock) -> None:
    first = granted(store, ask("a"))
    clock.pass_by(31 * NS)
    assert granted(store, ask("a")).fence > first.fence


@pytest.mark.requires("R1", "R4", "R7", "R19")
def test_stale_owner_cannot_release_or_renew_the_new_owners_lease(store: SqliteStore, clock: MovedClock) -> None:
    granted(store, ask("a"))
    clock.pass_by(31 * NS)
    grant = granted(store, ask("b"))
    assert release(store, "a") is False
    assert release(store, "a", keep_ns=NS) is False
    assert renew(store, "a") is False
    assert isinstance(acquire(store, ask("a")), Busy)
    assert granted(store, ask("b")) == grant


def test_an_expired_lease_is_neither_renewed_nor_released_by_its_old_token(
    store: SqliteStore, clock: MovedClock
) -> None:
    granted(store, ask("a"))
    clock.pass_by(30 * NS)
    assert renew(store, "a") is False
    assert release(store, "a") is False
    assert run_now(store.inspect("invoice:42", CALL)) is None


def test_a_batch_renews_what_is_ours_and_says_which_was_not(store: SqliteStore, clock: MovedClock) -> None:
    for number in range(500):
        granted(store, ask(f"t{number}", key=f"job:{number}", ttl=10 * NS if number == 7 else 30 * NS))
    release(store, "t3", key="job:3")
    granted(store, ask("thief", key="job:3"))
    clock.pass_by(10 * NS)
    batch = [Renewal(f"job:{number}", f"t{number}", "", 40 * NS) for number in range(500)]
    answers = run_now(store.renew_many(batch, CALL))
    assert [number for number, answer in enumerate(answers) if answer is not True] == [3, 7]
    assert answers[3] is False
    assert answers[7] is False
    left = {holding.key: holding.remaining_ns for holding in run_now(store.holdings("job:", 1000, CALL))}
    assert left["job:3"] == 20 * NS
    assert left["job:499"] == 40 * NS


def test_a_kept_key_stays_taken_for_its_time_and_matches_no_token(store: SqliteStore, clock: MovedClock) -> None:
    first = granted(store, ask("a"))
    assert release(store, "a", keep_ns=5 * NS) is True
    assert renew(store, "a") is False
    assert release(store, "a") is False
    assert busy(store, ask("a")).remaining_ns == 5 * NS
    clock.pass_by(5 * NS)
    assert granted(store, ask("b")).fence > first.fence


def test_a_kept_key_is_never_kept_longer_than_the_lease_was(store: SqliteStore, clock: MovedClock) -> None:
    granted(store, ask("a", ttl=3 * NS))
    assert release(store, "a", keep_ns=60 * NS) is True
    assert busy(store, ask("b")).remaining_ns == 3 * NS
    clock.pass_by(3 * NS)
    granted(store, ask("b"))


@pytest.mark.parametrize("ttl", [1, 366 * DAY, 2**62])
def test_the_shortest_and_the_longest_lease_are_kept_as_asked(store: SqliteStore, clock: MovedClock, ttl: int) -> None:
    granted(store, ask("a", ttl=ttl))
    assert busy(store, ask("b")).remaining_ns == ttl
    assert renew(store, "a", ttl=ttl) is True


# Secrets.


def test_the_file_does_not_contain_tokens_or_tickets(store: SqliteStore, path: str) -> None:
    token, ticket = "5ec2e7" * 6, "71c4e7" * 6
    granted(store, ask("other"))
    busy(store, AcquireRequest("invoice:42", token, "owner", "billing", 30 * NS, ticket, 30 * NS))
    granted(store, AcquireRequest("invoice:43", token, "owner", "billing", 30 * NS))
    holding = run_now(store.inspect("invoice:43", CALL))
    assert holding is not None
    assert holding.fingerprint == hashlib.sha256(token.encode()).hexdigest()[:6]
    content = b"".join(part.read_bytes() for part in Path(path).parent.iterdir())
    assert hashlib.sha256(token.encode()).hexdigest().encode() in content
    assert token.encode() not in content
    assert ticket.encode() not in content


def test_what_is_in_the_file_does_not_release_a_lease(store: SqliteStore, path: str) -> None:
    granted(store, ask("a"))
    with sqlite3.connect(path) as reader:
        (stored,) = reader.execute("SELECT token FROM holdfast_lease").fetchone()
    reader.close()
    assert run_now(store.release("invoice:42", stored, stored, 0, CALL)) is False
    assert renew(store, stored) is False
    assert isinstance(acquire(store, ask(stored)), Busy)


# Fences.


def test_the_fence_rises_through_everything_that_ends_a_lease(store: SqliteStore, clock: MovedClock) -> None:
    fences = [granted(store, ask("a")).fence]
    release(store, "a")
    fences.append(granted(store, ask("b")).fence)
    clock.pass_by(31 * NS)
    fences.append(granted(store, ask("c")).fence)
    record = run_now(store.force_release("invoice:42", "operator", "stuck", CALL))
    assert record is not None
    fences.append(record.fence)
    clock.move(wall=-DAY)
    fences.append(granted(store, ask("d")).fence)
    fences.append(granted(store, ask("e", key="another")).fence)
    assert fences == sorted(set(fences))


def test_the_fence_does_not_go_back_when_the_file_is_lost(store: SqliteStore, path: str, clock: MovedClock) -> None:
    first = granted(store, ask("a")).fence
    run_now(store.close())
    for part in Path(path).parent.iterdir():
        part.unlink()
    clock.pass_by(1_000)
    assert granted(store, ask("b")).fence > first


def test_a_fence_past_64_bits_is_refused_and_nothing_is_granted(store: SqliteStore, path: str) -> None:
    run_now(store.ping(CALL))
    with sqlite3.connect(path) as writer:
        writer.execute("UPDATE holdfast_fence SET value = ?", (2**63 - 2,))
    writer.close()
    assert granted(store, ask("secret-a")).fence == 2**63 - 1
    with pytest.raises(Misconfigured, match="64 bits") as caught:
        acquire(store, ask("secret-b", key="another"))
    assert "secret" not in str(caught.value)
    assert run_now(store.inspect("another", CALL)) is None


# What operators see.


def test_holdings_are_those_of_the_prefix_in_order_without_the_dead_and_up_to_the_limit(
    store: SqliteStore, elsewhere: Elsewhere, clock: MovedClock
) -> None:
    dead = elsewhere(process=f"{store.leases.judge.host.pids}/{2**22 + 1}/1")
    for number in range(20):
        granted(dead if number % 3 == 0 else store, ask("t", f"job:{number:02}", ttl=NS if number % 3 == 1 else DAY))
    granted(store, ask("t", "joc"))
    granted(store, ask("t", "jo"))
    clock.pass_by(2 * NS)
    alive = [f"job:{number:02}" for number in range(20) if number % 3 == 2]
    for limit in (0, 1, 4, len(alive), 100):
        assert [each.key for each in run_now(store.holdings("job:", limit, CALL))] == alive[:limit]
    assert [each.key for each in run_now(store.holdings("", 100, CALL))] == ["jo", *alive, "joc"]
    assert run_now(store.holdings("job:x", 100, CALL)) == []


# What is left behind.


def test_leases_that_ran_out_and_were_never_asked_for_again_are_swept(
    store: SqliteStore, elsewhere: Elsewhere, path: str, clock: MovedClock
) -> None:
    for number in range(50):
        granted(store, ask("t", key=f"once:{number}", ttl=NS))
    other = elsewhere(clock="f00dfeedf00dfeed.other.0", process="")
    granted(other, ask("t", key="foreign", ttl=60 * NS))
    clock.pass_by(2 * NS)
    granted(elsewhere(), ask("a"))  # a program that starts does its share
    with sqlite3.connect(path) as reader:
        keys = {key for (key,) in reader.execute("SELECT key FROM holdfast_lease")}
    reader.close()
    assert keys == {"foreign", "invoice:42"}


# Queues.


def test_the_head_of_the_queue_gets_the_key_and_those_who_ran_out_of_time_are_passed_over(
    store: SqliteStore, clock: MovedClock
) -> None:
    granted(store, ask("holder"))
    assert [busy(store, ask(name, ticket=name)).ahead for name in ("a", "b", "c")] == [0, 1, 2]
    assert release(store, "holder")
    assert busy(store, ask("c", ticket="c")) == Busy("invoice:42", None, None, 2)
    clock.pass_by(6 * NS)
    assert busy(store, ask("c", ticket="c")).ahead == 2  # which extends the lease of its ticket
    clock.pass_by(5 * NS)  # the tickets of a and b have run out
    granted(store, ask("c", ticket="c"))
    assert run_now(store.inspect("invoice:42", CALL)).waiters == 0  # type: ignore[union-attr]


def test_a_ticket_of_a_process_that_is_gone_does_not_hold_up_the_queue(
    store: SqliteStore, elsewhere: Elsewhere
) -> None:
    dead = elsewhere(process=f"{store.leases.judge.host.pids}/{2**22 + 1}/1")
    assert store.leases.judge.host.gone(dead.leases.judge.host.process)
    granted(store, ask("holder"))
    busy(dead, ask("a", ticket="a"))
    assert busy(store, ask("b", ticket="b")).ahead == 0
    release(store, "holder")
    granted(store, ask("b", ticket="b"))
