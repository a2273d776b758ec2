"""The URL of a Postgres store: understood completely, or refused by field, and never shown with its password."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import BadInput
from holdfast.stores.postgres.url import PostgresAddress, parse_postgres_url


def options(address: PostgresAddress, at: int = 0, resolved: str | None = None) -> dict[str, object]:
    return dict(conninfo_to_dict(address.places[at].conninfo(resolved).decode()))


def test_one_host_on_this_machine() -> None:
    address = parse_postgres_url("postgres://ada:secret@localhost:6000/app")
    found = options(address, resolved="127.0.0.1")
    assert (found["host"], found["hostaddr"], found["port"], found["user"]) == ("localhost", "127.0.0.1", "6000", "ada")
    assert (found["dbname"], found["password"], found["target_session_attrs"]) == ("app", "secret", "read-write")
    assert "sslmode" not in found
    assert address.schema == '"holdfast"'
    assert "secret" not in str(address)
    assert "secret" not in repr(address)


def test_another_host_must_prove_who_it_is_unless_the_url_says_otherwise() -> None:
    assert options(parse_postgres_url("postgresql://db.example/app"))["sslmode"] == "verify-full"
    assert options(parse_postgres_url("postgresql://db.example/app?sslmode=disable"))["sslmode"] == "disable"


def test_several_hosts_are_several_places_with_ports_of_their_own() -> None:
    address = parse_postgres_url("postgresql://one.example:1,two.example:2/app?sslmode=disable")
    assert [(place.name, place.port) for place in address.places] == [("one.example", "1"), ("two.example", "2")]
    assert [options(address, at)["port"] for at in range(2)] == ["1", "2"]


def test_a_socket_and_an_address_need_no_name() -> None:
    (place,) = parse_postgres_url("postgresql:///app?host=/run/postgresql").places
    assert place.name is None
    (place,) = parse_postgres_url("postgresql://db.example/app?hostaddr=10.0.0.1&sslmode=disable").places
    assert place.name is None


def test_own_options_are_read_and_not_passed_on() -> None:
    address = parse_postgres_url("postgresql:///app?schema=locks&pool_max=3&pool_timeout=5&connect_timeout=2")
    assert (address.schema, address.pool_max) == ('"locks"', 3)
    assert options(address)["connect_timeout"] == "2"
    assert not {"schema", "pool_max", "pool_timeout"} & set(options(address))


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("postgresql://h/app?schema=", "url option schema"),
        ("postgresql://h/app?schema=pg_x", "url option schema"),
        ("postgresql://h/app?schema=a%22b", "url option schema"),
        ("postgresql://h/app?schema=" + "x" * 64, "url option schema"),
        ("postgresql://h/app?schema=a&schema=b", "url option schema"),
        ("postgresql://h/app?pool_max=0", "url option pool_max"),
        ("postgresql://h/app?pool_max=" + "9" * 5000, "url option pool_max"),
        ("postgresql://h/app?pool_max=\u0663", "url option pool_max"),
        ("postgresql://ada:hunter2@h/app?no_such_option=1", "url"),
        ("postgresql://ada:hunter2@h:port/app?%ff", "url"),
        ("postgresql://one,two/app?hostaddr=127.0.0.1", "url"),
        ("postgresql://h/app\0", "url"),
        ("postgresql://\udcff/app", "url"),
    ],
)
def test_anything_else_is_refused_by_field(url: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_postgres_url(url)
    assert caught.value.field == field
    assert "hunter2" not in str(caught.value)
