"""The tables of stores say what the engines claim, and every scheme is in them."""

from __future__ import annotations

import pytest

import store_tables
from holdfast.stores.registry import BUILT
from holdfast.testing.conformance import proofs


@pytest.mark.parametrize(("page", "name"), [pytest.param(*key, id=key[1]) for key in store_tables.TABLES])
def test_the_tables_of_stores_are_up_to_date(page: object, name: str) -> None:
    table = store_tables.TABLES[page, name]()  # type: ignore[index]  # a key of it
    path = next(each for each, title in store_tables.TABLES if title == name)
    text = path.read_text(encoding="utf-8")
    assert store_tables.written(text, name, table) == text, "run `make docs`"


def test_every_scheme_is_in_the_table_of_the_readme() -> None:
    table = store_tables.readme_table()
    families = {scheme.replace("rediss", "redis").replace("valkeys", "valkey") for scheme in BUILT}
    assert [each for each in families - {"redis+unix"} if f"{each}://" not in table] == []


def test_every_claim_has_a_check_that_proves_it() -> None:
    assert [claim for claim, sentences in proofs().items() if not sentences] == []


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks for 'stores'"):
        store_tables.written("# Readme", "stores", "| a |")
