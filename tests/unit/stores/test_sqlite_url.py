"""What a `sqlite://` URL means, and what is refused with the field and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.engine import open_engine
from holdfast.types import NS

CALL = 5 * NS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///leases.db", f"{Path.cwd()}/leases.db"),
        ("sqlite:///some/where.db", f"{Path.cwd()}/some/where.db"),
        ("sqlite:////var/lib/leases.db", "/var/lib/leases.db"),
        ("sqlite:////with%20space/l%C3%B6cks.db?synchronous=FULL", "/with space/löcks.db"),
        ("SQLite:////x/y.db?busy_timeout=2.5&synchronous=normal", "/x/y.db"),
    ],
)
def test_a_url_names_a_file_and_opens_nothing(url: str, path: str) -> None:
    assert open_engine(url).path == path
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "url: .* sqlite:///name.db"),
        ("sqlite:///", "url: .* no file name"),
        ("sqlite:////tmp/", "url: .* no file name"),
        ("sqlite://host/leases.db", "url: .* sqlite:///name.db"),
        ("sqlite:leases.db", "url: .* sqlite:///name.db"),
        ("sqlite:///:memory:", "url: .* memory://"),
        ("sqlite:///file:x", "url: .* memory://"),
        ("sqlite:///a%00b", "url: .* zero byte"),
        ("sqlite:///a.db?sync=full", "url: 'sync' is not an option .* synchronous"),
        ("sqlite:///a.db?synchronous=off", "synchronous: 'off' .* normal or full"),
        ("sqlite:///a.db?synchronous=full&synchronous=full", "url: .* twice"),
        ("sqlite:///a.db?busy_timeout=soon", "busy_timeout: .soon. is not a length of time"),
        ("sqlite:///a.db?busy_timeout=-1", "busy_timeout: -1 s is out of range"),
        ("sqlite:///a.db?busy_timeout=nan", "busy_timeout: .* is not a length of time"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_with_the_field_and_the_fix(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        open_engine(url)


def test_full_synchronisation_is_used_when_asked_for(path: Path) -> None:
    for word, level in (("normal", 1), ("full", 2)):
        store = open_engine(f"sqlite:///{path}?synchronous={word}").blocking
        assert store.leases.file.run(lambda each: each.execute("PRAGMA synchronous").fetchone(), CALL) == (level,)
        run_now(store.close())
