"""The tally of a quorum: who decides, what is left open, and which fence a majority has settled on."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.quorum import Tally, Verdict, Vote, assured, free_in_ns, majority, settled, validity_ns, vote
from holdfast.core.lease.timing import drift_ns
from holdfast.types import MS, NS, Instant

SIZES = (3, 5, 7, 9)


@pytest.mark.parametrize("nodes", SIZES)
def test_two_majorities_have_a_node_in_common_and_no_smaller_group_is_one(nodes: int) -> None:
    need = majority(nodes)
    assert 2 * need > nodes
    assert 2 * (need - 1) < nodes


@pytest.mark.parametrize("nodes", [3, 5])
def test_every_order_of_every_vote_comes_to_the_same_and_is_decided_as_early_as_it_can_be(nodes: int) -> None:
    need = majority(nodes)
    for votes in itertools.product(Vote, repeat=nodes):
        tally = Tally(nodes)
        for number, each in enumerate(votes, 1):
            tally.cast(each)
            ends = {
                Tally(nodes, (*votes[:number], *rest)).verdict
                for rest in itertools.product(Vote, repeat=nodes - number)
            }
            assert (tally.verdict is Verdict.PENDING) == (len(ends) > 1)
            assert tally.verdict is Verdict.PENDING or ends == {tally.verdict}
        won, lost = votes.count(Vote.YES) >= need, votes.count(Vote.NO) >= need
        assert tally.verdict is (Verdict.WON if won else Verdict.LOST if lost else Verdict.FAULTED)
        assert tally.pending == 0
        assert tally.quorate == (votes.count(Vote.YES) + votes.count(Vote.NO) >= need)


def test_an_answer_is_a_vote_and_none_is_a_doubt() -> None:
    assert [vote(each) for each in (True, False, None)] == [Vote.YES, Vote.NO, Vote.UNKNOWN]


def test_validity_counts_from_before_the_first_request_on_the_most_pessimistic_clock() -> None:
    began = Instant(0, 0, 0)
    assert validity_ns(10 * NS, began, Instant(NS, NS, NS)) == 9 * NS - drift_ns(10 * NS)
    assert validity_ns(10 * NS, began, Instant(NS, 9 * NS, NS)) == NS - drift_ns(10 * NS)
    assert validity_ns(10 * NS, began, Instant(10 * NS - 102 * MS, 0, 0)) == 0


@given(st.sampled_from(SIZES), st.lists(st.integers(1, 3), max_size=9))
def test_a_settled_fence_is_the_only_one_that_a_majority_has(nodes: int, fences: list[int]) -> None:
    fences = fences[:nodes]
    fence = settled(fences, nodes)
    held = [each for each in set(fences) if fences.count(each) >= majority(nodes)]
    assert held == ([] if fence is None else [fence])


@given(st.sampled_from(SIZES), st.data())
def test_every_majority_has_a_node_at_or_above_what_is_assured(nodes: int, data: st.DataObject) -> None:
    fences = data.draw(st.lists(st.integers(1, 20), min_size=nodes, max_size=nodes))
    sure = assured(fences, nodes)
    assert sure is not None
    for group in itertools.combinations(fences, majority(nodes)):
        assert max(group) >= sure
    assert min(max(group) for group in itertools.combinations(fences, majority(nodes))) == sure


def test_nothing_is_assured_by_fewer_than_a_majority() -> None:
    assert assured([9, 9], 5) is None


def test_a_key_is_free_when_a_majority_of_nodes_is() -> None:
    assert free_in_ns([0, 0, 0, 9, 9], 5) == 0
    assert free_in_ns([0, 0, 7, 9, 8], 5) == 7
    assert free_in_ns([5, 6, None, None, 7], 5) == 7
    assert free_in_ns([5, 6, None, None], 5) is None
