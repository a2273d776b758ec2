"""Bugs in what is asked of an etcd cluster, and in what its answers are taken for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.stores.etcd import store as etcd_store
from holdfast.stores.etcd import waiter
from holdfast.stores.etcd.fence_base import Base, FenceBase
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.messages import Message, get, same_value
from mutation.detectors import ServerTest
from mutation.mutant import MutantGroup

group = MutantGroup()
keep = group.keep

_LEASES = "integration.stores.test_etcd_leases"


@keep(
    "a renewal that compares only the holder",
    where="stores/etcd/store.py",
    found_by=ServerTest(
        _LEASES,
        "test_a_renewal_that_is_delivered_late_does_not_shorten_the_lease",
        at="assert seen.remaining_ns > 500 * NS",
        given={"renewed": "by the grant"},
    ),
)
def a_late_renewal_moves_the_key_back(patch: pytest.MonkeyPatch) -> None:
    """A renewal checks whose lease it is, but not whether a newer renewal came before it."""
    patch.setattr(etcd_store, "unchanged", lambda seen: same_value(seen.key, seen.value))


@keep(
    "the second answer taken for the first",
    where="stores/etcd/gateway.py",
    found_by=ServerTest(_LEASES, "test_a_release_without_an_answer_stays_unknown", at="DID NOT RAISE"),
)
def a_repeated_release_is_believed_to_be_refused(patch: pytest.MonkeyPatch) -> None:
    """The answer to a release is lost, it is sent again, and finds nothing to delete: reported as not the owner."""
    transact = Gateway.transact

    async def without_doubt(self: Gateway, *args: Any, **options: Any) -> Any:
        return await transact(self, *args, **{**options, "settles": None})

    patch.setattr(Gateway, "transact", without_doubt)


@keep(
    "the bare revision as a fence",
    where="stores/etcd/fence_base.py",
    found_by=ServerTest(
        _LEASES, "test_fences_rise_when_a_cluster_has_lost_everything", at="assert new.fence > old.fence"
    ),
    attacks=("R57",),
)
def fences_begin_again_with_a_new_cluster(patch: pytest.MonkeyPatch) -> None:
    """Nothing is added to revisions, which begin at 1 in a cluster that has lost its data."""
    read = FenceBase._read

    async def nothing(self: FenceBase, *args: Any) -> Base:
        return (await read(self, *args))._replace(number=0)

    patch.setattr(FenceBase, "_read", nothing)


@keep(
    "every waiter watches the lock",
    where="stores/etcd/waiter.py",
    found_by=ServerTest(
        _LEASES, "test_a_release_wakes_the_first_waiter_and_no_other", at="assert woken == [True, False, False, False]"
    ),
)
def a_release_wakes_every_waiter(patch: pytest.MonkeyPatch) -> None:
    """Each waiter watches the lock instead of the waiter before it."""
    patch.setattr(waiter, "created_before", lambda queue, revision, limit: get(queue + b"nothing"))


@keep(
    "reads that any member answers from its own copy",
    where="stores/etcd/gateway.py",
    found_by=ServerTest(
        "integration.stores.test_etcd_cluster",
        "test_a_leader_that_is_cut_off_grants_nothing_and_what_it_missed_stays",
        at="DID NOT RAISE",
    ),
    attacks=("R57",),
)
def a_member_that_is_cut_off_answers_reads(patch: pytest.MonkeyPatch) -> None:
    """Reads do not ask the majority, so a member without one answers them."""
    call = Gateway.call

    async def from_its_own_copy(self: Gateway, path: str, message: Message, *args: Any, **options: Any) -> Any:
        message = {**message, "serializable": True} if path == "/v3/kv/range" else message
        return await call(self, path, message, *args, **options)

    patch.setattr(Gateway, "call", from_its_own_copy)
