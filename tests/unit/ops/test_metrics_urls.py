"""The metrics of a process are found with and without `/metrics` in the address, in every command."""

from __future__ import annotations

import pytest

from holdfast.errors import BadInput
from holdfast.ops.http_client import metrics_url


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://h:9100", "http://h:9100/metrics"),
        ("http://h:9100/", "http://h:9100/metrics"),
        ("http://h:9100/metrics", "http://h:9100/metrics"),
        ("http://h:9100?x=1", "http://h:9100/metrics?x=1"),
        ("https://h/behind/proxy/metrics", "https://h/behind/proxy/metrics"),
    ],
)
def test_the_path_may_be_left_out(given: str, asked: str) -> None:
    assert metrics_url("--metrics", given) == asked


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(BadInput, match="--metrics"):
        metrics_url("--metrics", "h:9100")
