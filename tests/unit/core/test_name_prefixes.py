"""What keys and metrics begin with: words that every store, Prometheus and OpenTelemetry take; texts spelled so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.name_prefixes import CHARS_MAX, NamePrefixes, check_key_prefix, check_metric_prefix
from holdfast.errors import BadInput
from holdfast.types import check_key


@pytest.mark.parametrize(
    ("prefix", "problem"),
    [
        ("", "is empty"),
        (7, "int is not a word"),
        ("a" * (CHARS_MAX + 1), "has 33 characters"),
        ("team:acme", "contains a colon"),
        ("{acme}", "cannot begin the keys of locks"),
        ("acme ", "cannot begin the keys of locks"),
        ("7up", "cannot begin the keys of locks"),
        ("acmé", "cannot begin the keys of locks"),
    ],
)
def test_a_word_that_keys_cannot_begin_with_is_refused(prefix: object, problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as caught:
        check_key_prefix("names.keys", prefix)
    assert caught.value.field == "names.keys"
    assert caught.value.fix


@pytest.mark.parametrize(
    "prefix", ["", None, "a" * 33, "acme_", "_acme", "a__b", "ac-me", "a.b", "a:b", "7up", "process", "Python"]
)
def test_a_word_that_metrics_cannot_begin_with_is_refused(prefix: object) -> None:
    with pytest.raises(BadInput) as caught:
        check_metric_prefix("names.metrics", prefix)
    assert caught.value.fix


def test_words_of_an_operator_are_taken_as_they_are() -> None:
    assert [check_key_prefix("f", each) for each in ("acme", "Team-7.blue_x")] == ["acme", "Team-7.blue_x"]
    assert [check_metric_prefix("f", each) for each in ("acme", "my_team", "A1")] == ["acme", "my_team", "A1"]


@given(st.text(max_size=40))
def test_what_is_taken_is_safe_in_every_store_and_splits_off_again(prefix: str) -> None:
    try:
        found = check_key_prefix("f", prefix)
    except BadInput:
        return
    key = check_key("key", f"{found}:scheduler:job:1")
    assert key.partition(":") == (found, ":", "scheduler:job:1")


def test_texts_are_spelled_with_the_words_and_data_in_quotes_is_left_alone() -> None:
    names = NamePrefixes("team", "acme")
    for declared, spelled in (
        ("rate(holdfast_lock_busy_total[5m])", "rate(acme_lock_busy_total[5m])"),
        ("family:holdfast_locks_waiting:avg5m > 2", "family:acme_locks_waiting:avg5m > 2"),
        (
            'holdfast_draining{plane="holdfast_blue", b="holdfast:"}',
            'acme_draining{plane="holdfast_blue", b="holdfast:"}',
        ),
        ("see `holdfast locks holdfast:wf:run:lock:`.", "see `holdfast locks team:wf:run:lock:`."),
        ("`holdfast locks holdfast:`", "`holdfast locks team:`"),
        ("holdfast: it ended; my_holdfast_table; x-holdfast:y", "holdfast: it ended; my_holdfast_table; x-holdfast:y"),
    ):
        assert names.spelled(declared) == spelled
        assert NamePrefixes().spelled(declared) == declared
