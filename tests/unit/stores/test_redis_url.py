"""A Redis URL is understood completely or refused with the part and the fix, and its password is never shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.stores.redis.engine import open_engine
from holdfast.stores.redis.url import parse_redis_url, parse_sentinel_url


def test_host_port_database_user_and_password_are_read_and_unescaped() -> None:
    address = parse_redis_url("redis://ops%40eu:p%40ss%2Fw%23rd@db.example:6380/3")
    assert (address.host, address.port, address.db) == ("db.example", 6380, 3)
    assert (address.username, address.password) == ("ops@eu", "p@ss/w#rd")
    assert (address.tls, address.path, address.prefix, address.namespace) == (None, None, "", "holdfast")


def test_everything_but_the_scheme_has_a_default() -> None:
    address = parse_redis_url("redis://")
    assert (address.host, address.port, address.db, address.password) == ("localhost", 6379, 0, None)


def test_a_password_may_come_without_a_user() -> None:
    address = parse_redis_url("redis://:secret@host")
    assert (address.username, address.password) == (None, "secret")


def test_an_ipv6_host_is_shown_in_brackets() -> None:
    assert str(parse_redis_url("redis://[::1]:7000")) == "[::1]:7000"


@pytest.mark.parametrize("scheme", ["unix", "redis+unix"])
def test_a_unix_socket_takes_its_database_as_an_option(scheme: str) -> None:
    address = parse_redis_url(f"{scheme}:///run/my%20redis.sock?db=2")
    assert (address.path, address.db) == ("/run/my redis.sock", 2)
    assert str(address) == "unix:/run/my redis.sock"


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls_is_verified_unless_told_otherwise(scheme: str) -> None:
    verified = parse_redis_url(f"{scheme}://host").tls
    trusting = parse_redis_url(f"{scheme}://host?ssl_cert_reqs=none").tls
    nameless = parse_redis_url(f"{scheme}://host?ssl_check_hostname=false").tls
    assert verified is not None
    assert trusting is not None
    assert nameless is not None
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (trusting.verify_mode, trusting.check_hostname) == (ssl.CERT_NONE, False)
    assert (nameless.verify_mode, nameless.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_valkey_is_redis_by_another_name() -> None:
    assert parse_redis_url("valkey://host:1/1") == parse_redis_url("redis://host:1/1")


@pytest.mark.parametrize(
    ("url", "field", "fix"),
    [
        ("redis://host:notaport", "url", "redis://"),
        ("redis://host:99999", "url", "redis://"),
        ("redis://host:0", "url", "redis://"),
        ("http://host", "url", "redis://"),
        ("redis://host/abc", "url db", "0 to"),
        ("redis://host/-1", "url db", "0 to"),
        ("redis://host/1.5", "url db", "0 to"),
        ("redis://host/999999", "url db", "0 to"),
        ("redis://host/²", "url db", "0 to"),
        ("redis://host/1?db=2", "url option db", "path or as an option"),
        ("redis://host?db=1&db=2", "url option db", "once"),
        ("redis://host?prefx=a", "url option", "did you mean prefix"),
        ("redis://host?colour=a", "url option", "there is prefix"),
        ("redis://host?prefix=a{b}", "url option prefix", "template"),
        ("redis://host?namespace=a%20b", "url option namespace", "letters"),
        ("redis://host?namespace=", "url option namespace", "non-empty"),
        ("redis://host?ssl_cert_reqs=none", "url option ssl_cert_reqs", "rediss://"),
        ("rediss://host?ssl_cert_reqs=maybe", "url option ssl_cert_reqs", "required"),
        ("rediss://host?ssl_cert_reqs=none&ssl_check_hostname=true", "url option ssl_check_hostname", "drop one"),
        ("rediss://host?ssl_ca_certs=/no/such/file", "url option ssl_ca_certs", "can be read"),
        ("rediss://host?ssl_keyfile=/dev/null", "url option ssl_keyfile", "ssl_certfile"),
        ("unix://host/path", "url", "three slashes"),
        ("unix:///", "url", "unix:///"),
        ("redis://host#1", "url", "%23"),
        ("redis://user@host", "url user", "user:password@"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_part_and_the_fix(url: str, field: str, fix: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_redis_url(url)
    assert caught.value.field == field
    assert fix in caught.value.fix


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
def test_a_tls_file_that_holds_no_certificate_is_refused_when_the_url_is_read(option: str, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("this is not a certificate")
    with pytest.raises(BadInput, match=option):
        parse_redis_url(f"rediss://host?{option}={nonsense}")


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@host:notaport",
        "redis://user:hunter2@host/abc",
        "redis://user:hunter2@host?colour=1",
        "redis://user:hunter2@host#x",
        "redis://user:pass?hunter2@host",
        "rediss://user:hunter2@host?ssl_ca_certs=/no/such/file",
        "unix://user:hunter2@host/x",
    ],
)
def test_no_refusal_shows_the_password(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_redis_url(url)
    assert "hunter2" not in str(caught.value)


def test_no_text_about_an_engine_shows_the_password() -> None:
    engine = open_engine("redis://user:hunter2@host:1/0")
    for thing in (engine, engine.blocking, parse_redis_url("redis://user:hunter2@host")):
        assert "hunter2" not in repr(thing)
        assert "hunter2" not in str(thing)


def test_sentinels_a_name_and_a_database_are_understood() -> None:
    url = (
        "rediss+sentinel://ada:s%2C3@one,two:26380,[::1]/leases%2F1/3?prefix=p:&sentinel_password=x%40y&wait_replicas=1"
    )
    found = parse_sentinel_url(url)
    assert [str(each) for each in found.sentinels] == ["one:26379", "two:26380", "[::1]:26379"]
    assert {(each.username, each.password) for each in found.sentinels} == {(None, "x@y")}
    assert all(each.tls is not None for each in (*found.sentinels, found.primary))
    primary = found.primary
    assert (primary.service, primary.db, primary.prefix, primary.wait_replicas) == ("leases/1", 3, "p:", 1)
    assert (primary.username, primary.password, primary.host) == ("ada", "s,3", "")
    assert str(primary) == "primary 'leases/1' (not found yet)"
    assert "s,3" not in f"{found!r}"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://one", "url: names no primary"),
        ("redis+sentinel://one/", "url: names no primary"),
        ("redis+sentinel://one,,two/m", "url host: a Sentinel has no name"),
        ("redis+sentinel://one,one:26379/m", "url host: a Sentinel is named twice"),
        ("redis+sentinel://one/m?sentinel_username=u", "url option sentinel_username: a user without a password"),
        ("redis+sentinel://one/m?sentinel_password=a&sentinel_password=b", "given twice"),
        ("redis+sentinel://one/m/x", "url db: the database is not a number"),
        ("redis+sentinel://one/m?nonsense=1", "url option: "),
        ("redis+sentinel://one/m?wait_replicas=many", "url option wait_replicas: is not a number"),
        ("redis+sentinel://one/m?wait_replicas=99", "give 0 to 16"),
        ("redis+sentinel://one/m?wait_timeout=1s", "url option wait_timeout: there is nothing to wait for"),
        ("redis+sentinel://one/m?wait_replicas=1&wait_timeout=0", "url option wait_timeout: "),
    ],
)
def test_a_wrong_url_of_sentinels_names_the_part(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        parse_sentinel_url(url)
    assert caught.value.fix
