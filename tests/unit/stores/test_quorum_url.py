"""The URL of a quorum: understood completely, or refused by field, and never shown."""

from __future__ import annotations

import pytest

from holdfast.errors import BadInput
from holdfast.stores.quorum.url import HEDGE_NS, parse_quorum_url
from holdfast.types import MS


def test_nodes_share_the_database_and_the_options_and_have_their_own_users() -> None:
    found = parse_quorum_url("redlock://a:1,u:p%2Cq@b,:s@[::1]:3/2?prefix=app:&namespace=aux&hedge=0.2")
    assert [str(node) for node in found.nodes] == ["a:1", "b:6379", "[::1]:3"]
    assert [(node.username, node.password) for node in found.nodes] == [(None, None), ("u", "p,q"), (None, "s")]
    assert {(node.db, node.prefix, node.namespace, node.tls) for node in found.nodes} == {(2, "app:", "aux", None)}
    assert found.hedge_ns == 200 * MS
    assert "p,q" not in repr(found)


def test_tls_holds_for_all_nodes() -> None:
    found = parse_quorum_url("redlock://a,b,c,d,e?tls=true")
    assert len(found.nodes) == 5
    assert all(node.tls is not None for node in found.nodes)
    assert found.hedge_ns == HEDGE_NS


@pytest.mark.parametrize(
    ("url", "field", "text"),
    [
        ("redlock://", "url", "names 1 nodes"),
        ("redlock://a,b", "url", "an odd number from 3 to 9"),
        ("redlock://a,b,c,d", "url", "names 4 nodes"),
        ("redlock://" + ",".join(f"h{number}" for number in range(11)), "url", "names 11 nodes"),
        ("redlock://a,,c", "url host", "has no name"),
        ("redlock://a,u:p@,c", "url host", "has no name"),
        ("redlock://a,b,a", "url host", "would vote twice"),
        ("redlock://a,b,A:6379", "url host", "would vote twice"),
        ("redlock://a,b,c:x", "url", "port"),
        ("redlock://a,b,c:0", "url", "port 0"),
        ("redlock://a,b,c/x", "url db", "not a number"),
        ("redlock://a,b,c?hedge=soon", "url option hedge", "seconds"),
        ("redlock://a,b,c?hedge=nan", "url option hedge", "seconds"),
        ("redlock://a,b,c?hedge=0", "url option hedge", "seconds"),
        ("redlock://a,b,c?tls=perhaps", "url option tls", "true or false"),
        ("redlock://a,b,c?tls=true&tls=false", "url option", "twice"),
        ("redlock://a,b,c?hegde=1", "url option", "not an option"),
        ("redlock://a,b,c?ssl_certfile=x", "url option ssl_certfile", "for TLS"),
        ("redlock://a,b,c#x", "url", "'#'"),
    ],
)
def test_what_cannot_be_a_quorum_is_refused_by_field(url: str, field: str, text: str) -> None:
    with pytest.raises(BadInput, match=text) as caught:
        parse_quorum_url(url)
    assert caught.value.field == field


@pytest.mark.parametrize("url", ["redlock://u:hunter2@a,b", "redlock://a,u:hunter2@b,c:x", "redlock://u:hunter2@a,b,a"])
def test_no_refusal_shows_a_password(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_quorum_url(url)
    assert "hunter2" not in str(caught.value)
