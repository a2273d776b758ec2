"""The walks of docs/architecture.md are those of real calls."""

from __future__ import annotations

import pytest

import walks


@pytest.mark.server
@pytest.mark.slow
def test_the_walks_of_the_page_are_those_of_real_calls() -> None:
    listed = walks.in_page(walks.PAGE.read_text(encoding="utf-8"))
    real = walks.shown(walks.recorded())
    assert set(listed) == set(real)
    for name, walk in real.items():
        missing = set(walk.always) - set(listed[name])
        not_called = set(listed[name]) - set(walk.always) - walk.sometimes
        assert (name, missing, not_called) == (name, set(), set()), "run `python tools/walks.py --write`"


def test_a_renewed_page_keeps_order_and_texts_and_adds_what_is_called() -> None:
    page = "a\n<!-- walk: lock -->\n1. `errors.py`: kept\n2. `plane/app.py`: goes\n<!-- end of walk -->\nb\n"
    walk = walks.Walk(("types.py", "errors.py"), frozenset(), ())
    renewed = walks.renewed(page, {"lock": walk})
    assert list(walks.in_page(renewed)["lock"]) == ["types.py", "errors.py"]
    assert "1. `errors.py`: kept\n" in renewed
    assert renewed.startswith("a\n")
    assert renewed.endswith("-->\nb\n")
