"""Which engine a URL means, and what is said when it means none."""

from __future__ import annotations

import importlib
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.errors import BadInput, Misconfigured
from holdfast.runtime.run_sync import run_now
from holdfast.stores.etcd import engine as etcd
from holdfast.stores.memory import store as memory
from holdfast.stores.memory.store import MemoryEngine
from holdfast.stores.nats import engine as nats
from holdfast.stores.postgres import engine as postgres
from holdfast.stores.quorum import engine as quorum
from holdfast.stores.redis import engine as redis
from holdfast.stores.registry import BUILT, Engine, open_engine, redacted, state_directory
from holdfast.stores.sqlite import engine as sqlite
from holdfast.types import NS, AcquireRequest, Busy, Grant


class FakeModule:
    """Stands for an engine's module and remembers the URL."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def open_engine(self, url: str) -> MemoryEngine:
        self.urls.append(url)
        return MemoryEngine()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeModule]:
    """Every engine module is a fake that is made when it is first imported."""
    made: dict[str, FakeModule] = {}
    monkeypatch.setattr(importlib, "import_module", lambda name: made.setdefault(name, FakeModule()))
    return made


def test_a_scheme_names_its_engine_and_no_other_is_imported(modules: dict[str, FakeModule]) -> None:
    for scheme, built in BUILT.items():
        modules.clear()
        open_engine(f"{scheme}://somewhere/0")
        assert {name: module.urls for name, module in modules.items()} == {built.module: [f"{scheme}://somewhere/0"]}


def test_every_engine_that_is_built_has_the_shape_of_an_engine(tmp_path: Path) -> None:
    engines: list[Engine] = [  # the annotation lets the type checker prove it, too
        memory.open_engine("memory://"),
        sqlite.open_engine(f"sqlite:///{tmp_path}/leases.db"),
        redis.open_engine("redis://127.0.0.1:1/0"),
        quorum.open_engine("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/0"),
        etcd.open_engine("etcd://127.0.0.1:1"),
        nats.open_engine("nats://127.0.0.1:1"),
        postgres.open_engine("postgresql://127.0.0.1:1/app"),
    ]
    names = ["memory", "sqlite", "redis", "quorum", "etcd", "nats", "postgres"]
    assert [engine.capabilities.engine for engine in engines] == names
    assert {built.module.split(".")[2] for built in BUILT.values()} == set(names)
    assert all(engine.blocking is engine.blocking for engine in engines)


def test_a_scheme_may_be_written_in_capitals(modules: dict[str, FakeModule]) -> None:
    open_engine("REDIS://host")
    assert modules["holdfast.stores.redis.engine"].urls == ["REDIS://host"]


def test_without_a_url_the_environment_decides(modules: dict[str, FakeModule], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://from-the-environment")
    open_engine()
    assert modules["holdfast.stores.redis.engine"].urls == ["redis://from-the-environment"]


def test_a_url_that_is_given_beats_the_environment(
    modules: dict[str, FakeModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://from-the-environment")
    open_engine("valkey://given")
    assert modules["holdfast.stores.redis.engine"].urls == ["valkey://given"]


def test_a_wrong_url_from_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "nonsense")
    with pytest.raises(BadInput) as caught:
        open_engine()
    assert caught.value.field == "$HOLDFAST_URL"


@pytest.mark.parametrize("empty", [None, ""])
def test_without_any_url_it_is_a_private_file_in_the_state_directory(
    modules: dict[str, FakeModule], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty: str | None
) -> None:
    if empty is not None:
        monkeypatch.setenv("HOLDFAST_URL", empty)
    home = tmp_path / "a b%20c#d"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    for _ in range(2):  # the directory may be there already
        open_engine()
    assert stat.S_IMODE((home / "holdfast").stat().st_mode) == 0o700
    [url] = set(modules["holdfast.stores.sqlite.engine"].urls)
    assert url.startswith("sqlite:///")
    assert "#" not in url
    assert " " not in url


def test_the_default_store_is_a_real_file_that_keeps_leases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "a b%20c#d?e"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    ask = AcquireRequest("k", "t" * 32, "svc@host:1/a", "family", 60 * NS)
    store = open_engine().blocking
    assert isinstance(run_now(store.acquire(ask, 5 * NS)), Grant)
    run_now(store.close())
    assert (home / "holdfast" / "leases.db").is_file()
    again = open_engine().blocking
    assert isinstance(run_now(again.acquire(ask._replace(token="u" * 32), 5 * NS)), Busy)
    run_now(again.close())


def test_the_state_directory_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fallback = tmp_path / ".local" / "state" / "holdfast"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_directory() == fallback
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    assert state_directory() == fallback
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_directory() == tmp_path / "state" / "holdfast"
    assert not (tmp_path / "state").exists()


def test_a_state_directory_that_cannot_be_made_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(Misconfigured, match="HOLDFAST_URL"):
        open_engine()


def test_a_user_without_a_home_gets_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(Misconfigured, match="XDG_STATE_HOME"):
        open_engine()


@pytest.mark.parametrize(
    ("scheme", "meant"),
    [
        ("reddis", "redis"),
        ("sqlite3", "sqlite"),
        ("postgre", "postgres"),
        ("memmory", "memory"),
        ("valky", "valkey"),
    ],
)
def test_a_misspelt_scheme_gets_a_suggestion(scheme: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"did you mean {meant}://"):
        open_engine(f"{scheme}://host")


def test_an_unknown_scheme_lists_what_there_is() -> None:
    with pytest.raises(BadInput, match="ftp:// is not a store") as caught:
        open_engine("ftp://host")
    assert all(f"{name}://" in str(caught.value) for name in BUILT)


@pytest.mark.parametrize("url", ["", "leases.db", "/tmp/leases.db", "//host", ":hunter2@host", "1redis://host"])
def test_a_url_without_a_scheme_says_what_one_looks_like(url: str) -> None:
    with pytest.raises(BadInput, match="has no scheme") as caught:
        open_engine(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", [5, b"redis://host", Path("leases.db"), ["memory://"]])
def test_what_is_not_text_is_refused(url: object) -> None:
    with pytest.raises(BadInput, match="is not a URL"):
        open_engine(url)  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("driver", ["redis", "hiredis", "redis.asyncio"])
def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {driver!r}", name=driver)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Misconfigured, match=r'pip install "holdfast\[redis\]"'):
        open_engine("redis://host")


def test_any_other_import_error_is_not_disguised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'holdfast.typo'", name="holdfast.typo")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        open_engine("redis://host")


def test_opening_a_memory_store_imports_no_other_engine() -> None:
    import subprocess

    code = (
        "import sys; from holdfast.stores.registry import open_engine; open_engine('memory://');"
        "print(sorted(name for name in sys.modules if name in ('redis', 'sqlite3', 'holdfast.stores.sqlite.engine')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# Passwords.


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user@host", "redis://user@host"),
        ("redis://user:hunter2@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:hunter2@host", "redis://:***@host"),
        ("redis://:hun@ter2@host", "redis://:***@host"),
        ("redis://:hun/ter2?x@host/0", "redis://:***@host/0"),
        ("unix://user:hunter2@/run/redis.sock?db=1", "unix://user:***@/run/redis.sock?db=1"),
        ("redis://host/0?password=hunter2&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host/0?db=1&ssl_keyfile_password=hun@ter2", "redis://host/0?db=1&ssl_keyfile_password=***"),
        ("redlock://u:hunter2@h1,u:hunter2@h2", "redlock://u:***@h2"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("memory://", "memory://"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


@given(
    scheme=st.sampled_from([*BUILT]),
    user=st.text("abc", max_size=3),
    password=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
)
def test_no_password_survives_redaction(scheme: str, user: str, password: str) -> None:
    secret = f"S3cret{password}S3cret"
    shown = redacted(f"{scheme}://{user}:{secret}@host:1/0")
    assert "S3cret" not in shown
    assert shown.startswith(f"{scheme}://{user}:***@")


@given(st.text())
def test_redaction_takes_any_text_and_is_done_once(url: str) -> None:
    assume("***" not in url)
    assert redacted(redacted(url)) == redacted(url)
