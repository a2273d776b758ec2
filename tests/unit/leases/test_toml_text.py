"""TOML of users is a table within limits, or is refused with one error, whatever the standard library raises."""

from __future__ import annotations

import pytest

from holdfast.core.strict_parsers import TOML_DEPTH_MAX, NotToml, toml_of


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "9" * 5_000,
        "a = 0x" + "f" * 5_000,
        "a = 9223372036854775808",
        "a = " + "[" * 3_000,
        "a = " + "[" * TOML_DEPTH_MAX + "]" * TOML_DEPTH_MAX,
        ".".join(["a"] * (TOML_DEPTH_MAX + 1)) + " = 1",
        "a = ",
    ],
    ids=["digits", "hex", "65 bits", "torn", "deep", "dotted", "torn value"],
)
def test_toml_is_a_table_or_refused_by_one_error(text: str) -> None:
    with pytest.raises(NotToml):
        toml_of(text)


def test_toml_within_its_limits_is_read() -> None:
    deep = ".".join(["a"] * (TOML_DEPTH_MAX - 1)) + " = -9223372036854775808"
    assert toml_of("a = [1, {b = 9223372036854775807}]") == {"a": [1, {"b": 2**63 - 1}]}
    assert toml_of(deep).keys() == {"a"}
