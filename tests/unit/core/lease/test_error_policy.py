"""What happens when the store cannot be reached, as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.error_policy import OnError, Policy, parse_mode, parse_policy
from holdfast.errors import BadInput


@pytest.mark.requires("R74", "R99")
def test_what_is_not_named_fails_closed() -> None:
    policy = parse_policy({"low": "fail_open"})
    assert policy.on_error(None) is OnError.FAIL_CLOSED
    assert policy.on_error("unheard-of") is OnError.FAIL_CLOSED
    assert Policy().on_error("low") is OnError.FAIL_CLOSED


@pytest.mark.requires("R100", "R104")
def test_each_risk_class_has_its_own_behaviour() -> None:
    policy = parse_policy({"low": "fail_open", "high": "fail_closed", "batch": OnError.WAIT})
    assert [policy.on_error(risk) for risk in ("low", "high", "batch")] == [
        OnError.FAIL_OPEN,
        OnError.FAIL_CLOSED,
        OnError.WAIT,
    ]


@pytest.mark.requires("R104")
def test_switching_a_class_makes_a_new_policy_and_leaves_the_old_one_alone() -> None:
    before = parse_policy({"low": "fail_open"})
    after = before.with_class("low", "fail_closed").with_class("money", OnError.WAIT)
    assert before.on_error("low") is OnError.FAIL_OPEN
    assert (after.on_error("low"), after.on_error("money")) == (OnError.FAIL_CLOSED, OnError.WAIT)


def test_a_policy_cannot_be_changed_behind_its_back() -> None:
    table = {"low": "fail_open"}
    policy = parse_policy(table)
    table["low"] = "wait"
    assert policy.on_error("low") is OnError.FAIL_OPEN
    with pytest.raises(TypeError):
        policy.classes["low"] = OnError.WAIT  # type: ignore[index]  # the point of the test
    assert parse_policy(policy) is policy


@pytest.mark.parametrize("mode", ["open", "FAIL_OPEN", "", None, 1, True, [], {}])
def test_a_mode_that_does_not_exist_is_refused_and_the_others_are_listed(mode: object) -> None:
    with pytest.raises(BadInput) as caught:
        parse_policy({"low": mode}, where="file")
    assert caught.value.field == "file.low"
    assert all(str(each) in str(caught.value) for each in OnError)


@pytest.mark.parametrize("table", [None, "fail_open", 3, ["low"], [("low", "fail_open")]])
def test_what_is_not_a_table_is_refused(table: object) -> None:
    with pytest.raises(BadInput, match="is not a table"):
        parse_policy(table)


@pytest.mark.parametrize("risk", ["", "a b", None, 5])
def test_a_risk_class_must_be_a_label(risk: object) -> None:
    with pytest.raises(BadInput, match="risk class"):
        parse_policy({risk: "wait"})


@given(st.dictionaries(st.text("abc.-", min_size=1, max_size=5), st.sampled_from(list(OnError))))
def test_a_policy_says_what_its_table_says(table: dict[str, OnError]) -> None:
    policy = parse_policy({risk: str(mode) for risk, mode in table.items()})
    assert {risk: policy.on_error(risk) for risk in table} == table
    assert all(parse_mode("x", mode.value) is mode for mode in table.values())
