"""The walks of docs/architecture.md are those of real calls."""

from __future__ import annotations

import pytest

import walks

MORE = 3  # runs, at most, before a difference counts


@pytest.mark.server
@pytest.mark.slow
def test_the_walks_of_the_page_are_those_of_real_calls() -> None:
    listed = walks.in_page(walks.PAGE.read_text(encoding="utf-8"))
    recorded = walks.recorded()
    wrong = differences(listed, recorded)
    for _ in range(MORE):  # on a busy machine, periodic tasks may run in every recording of one run
        if wrong:
            recorded = walks.joined(recorded, walks.recorded())
            wrong = differences(listed, recorded)
    assert wrong == [], "run `python tools/walks.py --write`"


def differences(listed: dict[str, dict[str, str]], recorded: dict[str, walks.Walk]) -> list[tuple[str, str, set[str]]]:
    real = walks.shown(recorded)
    assert set(listed) == set(real)
    found = []
    for name, walk in real.items():
        found.append((name, "missing", set(walk.always) - set(listed[name])))
        found.append((name, "not called", set(listed[name]) - set(walk.always) - walk.sometimes))
    return [each for each in found if each[2]]


def test_walks_of_two_runs_contain_what_both_always_call() -> None:
    first = {"job": walks.Walk(("a", "b", "c"), frozenset({"d"}), ("a", "b"))}
    second = {"job": walks.Walk(("c", "a", "d"), frozenset(), ("a",))}
    assert walks.joined(first, second) == {"job": walks.Walk(("a", "c"), frozenset({"b", "d"}), ("a",))}


def test_a_renewed_page_keeps_order_and_texts_and_adds_what_is_called() -> None:
    page = "a\n<!-- walk: lock -->\n1. `errors.py`: kept\n2. `plane/app.py`: goes\n<!-- end of walk -->\nb\n"
    walk = walks.Walk(("types.py", "errors.py"), frozenset(), ())
    renewed = walks.renewed(page, {"lock": walk})
    assert list(walks.in_page(renewed)["lock"]) == ["types.py", "errors.py"]
    assert "1. `errors.py`: kept\n" in renewed
    assert renewed.startswith("a\n")
    assert renewed.endswith("-->\nb\n")
