"""What a fence looks like in HTTP: names survive the headers, and nonsense in them is found out."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadInput
from holdfast.guards import CarriedFence
from holdfast.guards.http import headers as wire
from holdfast.types import KEY_BYTES_MAX, check_key


def _is_key(text: str) -> bool:
    try:
        check_key("key", text)
    except BadInput:
        return False
    return True


keys = st.text(min_size=1, max_size=60).filter(_is_key)


def raw(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in pairs]


@given(keys, st.integers(0, FENCE_MAX))
@example("a,b;c=d \"e\" 50% \\ 'f'", 0)
@example("rechnung:zürich/漢字 🙂", FENCE_MAX)
@example("ü" * (KEY_BYTES_MAX // 2), 1)
def test_every_name_of_a_lock_and_every_fence_survive_the_headers(key: str, fence: int) -> None:
    headers = wire.request_headers(key, fence)
    assert wire.presented(raw(*headers.items())) == CarriedFence(key, fence)
    for value in headers.values():
        assert value.isascii()
        assert value.isprintable()
        assert not set(value) & {" ", ",", '"'}


@given(st.text(max_size=40))
def test_whatever_arrives_as_a_name_is_understood_or_refused_by_its_header(text: str) -> None:
    headers = [(b"Holdfast-Key", text.encode("utf-8", "surrogatepass")), (b"Holdfast-Fence", b"1")]
    field, found = None, None
    try:
        found = wire.presented(headers)
    except BadInput as error:
        field = error.field
    if found is None:
        assert field == wire.KEY_HEADER
    else:
        assert wire.presented(raw(*wire.request_headers(found.key, 1).items())) == found


def test_names_that_people_type_need_no_encoding() -> None:
    assert wire.encode_key("invoice:42/line-7_a.b~c@d") == "invoice:42/line-7_a.b~c@d"


def test_header_names_are_taken_in_any_case_and_values_with_blanks_around_them() -> None:
    found = wire.presented(raw(("HOLDFAST-KEY", " invoice:42\t"), ("holdfast-fence", " 7 ")))
    assert found == CarriedFence("invoice:42", 7)


def test_a_request_without_the_headers_presents_nothing() -> None:
    assert wire.presented(raw(("host", "x"), ("holdfast-fences", "1"))) is None


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([("Holdfast-Key", "a")], "Holdfast-Fence"),
        ([("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a"), ("Holdfast-Key", "a"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "1"), ("Holdfast-Fence", "1")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a, a"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a,a"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "1, 1")], "Holdfast-Fence"),
        ([("Holdfast-Key", ""), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "zürich"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a%2"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a%zz"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a%FF"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a%00"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a%0A"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a{b}"), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a" * 513), ("Holdfast-Fence", "1")], "Holdfast-Key"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "-1")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "+1")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "01")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "1.0")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "0x1")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "1_0")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "²")], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", str(FENCE_MAX + 1))], "Holdfast-Fence"),
        ([("Holdfast-Key", "a"), ("Holdfast-Fence", "9" * 4000)], "Holdfast-Fence"),
    ],
)
def test_headers_that_make_no_sense_are_refused_by_name(headers: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        wire.presented(raw(*headers))
    assert refused.value.field == field
    assert len(str(refused.value)) < 300


def test_a_problem_says_all_that_rfc_9457_asks_for_and_both_fences_exactly() -> None:
    problem = wire.fenced_out(CarriedFence("zürich", 2**53 + 1), FENCE_MAX)
    body = problem.body("/documents/42")
    assert json.loads(body) == {
        "type": "urn:holdfast:problem:fenced-out",
        "title": "A newer fence was seen",
        "status": 412,
        "detail": f"The lease of zürich with fence {2**53 + 1} has been superseded, for {FENCE_MAX} was seen. "
        "Nothing was done. Stop working under this lease.",
        "instance": "/documents/42",
        "key": "zürich",
        "fence": 2**53 + 1,
        "seen": FENCE_MAX,
    }
    headers = dict(problem.response_headers(body))
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"holdfast-seen"] == str(FENCE_MAX).encode()
