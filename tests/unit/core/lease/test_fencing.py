"""The rule of every guard: not below what was seen; and what can be a fence at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.fencing import FENCE_MAX, Rule, Stale, Unregistered, accepts, check_fence, judge, parse_fence
from holdfast.errors import BadInput

FENCES = st.integers(0, FENCE_MAX)


@given(FENCES)
def test_a_resource_that_has_met_no_fence_accepts_any(fence: int) -> None:
    assert accepts(None, fence)


@pytest.mark.requires("R58")
@pytest.mark.parametrize("seen", [1, 2**53, FENCE_MAX])
def test_a_fence_below_what_was_seen_is_refused_and_its_holder_may_write_again(seen: int) -> None:
    assert [accepts(seen, fence) for fence in (0, seen - 1, seen, FENCE_MAX)] == [False, False, True, True]


@given(st.lists(FENCES))
def test_what_a_resource_carries_never_goes_down(arriving: list[int]) -> None:
    carried: int | None = None
    for fence in arriving:
        before = carried
        if accepts(carried, fence):
            carried = fence
        assert before is None or (carried is not None and carried >= before)
    assert carried == (max(arriving) if arriving else None)


@given(st.none() | FENCES, FENCES)
def test_inside_a_section_only_the_fence_that_entered_may_write(seen: int | None, fence: int) -> None:
    refusal = judge(Rule.EXACTLY, seen, fence)
    if seen == fence:
        assert refusal is None
    elif seen is not None and seen > fence:
        assert refusal == Stale(seen)
    else:
        assert refusal == Unregistered(seen)


@given(st.none() | FENCES, FENCES)
def test_without_a_rule_nothing_is_refused(seen: int | None, fence: int) -> None:
    assert judge(Rule.NONE, seen, fence) is None


@given(FENCES)
def test_a_fence_survives_the_way_through_text(fence: int) -> None:
    assert parse_fence("fence", str(fence)) == fence


@pytest.mark.parametrize("wrong", [True, False, None, 1.0, "1", b"1", -1, FENCE_MAX + 1, 2**200, object(), [1]])
def test_what_is_no_fence_is_refused_and_named(wrong: object) -> None:
    with pytest.raises(BadInput, match=r"^Holdfast-Fence: .+; ") as refused:
        check_fence("Holdfast-Fence", wrong)
    assert refused.value.field == "Holdfast-Fence"


@pytest.mark.parametrize(
    "wrong",
    *[
        [
            "",
            "01",
            "+1",
            "-1",
            " 1",
            "1 ",
            "1\n",
            "1_0",
            "0x1",
            "1.0",
            "1e3",
            "٣",
            "²",
            "9" * 19,
            "9" * 400,
            7,
            None,
            b"7",
        ]
    ],
)
def test_text_that_is_not_plain_decimal_digits_in_range_is_refused(wrong: object) -> None:
    with pytest.raises(BadInput):
        parse_fence("fence", wrong)
