"""What a SQLite store does with the file it is given: make it, recognise it, bring it up to date, or refuse it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import BackendError, Misconfigured, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite import connection as sqlite_file
from holdfast.stores.sqlite import mounts, schema
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore, open_engine
from holdfast.types import MS, NS, AcquireRequest, Busy, Grant
from support.load.sqlite_processes import in_a_child

CALL = 5 * NS


def ask(token: str = "t", key: str = "k") -> AcquireRequest:
    return AcquireRequest(key, token, "svc@host:1/x", "default", 60 * NS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteEngine(str(path)).blocking
    yield store
    run_now(store.close())


def acquire(store: SqliteStore, wanted: AcquireRequest) -> Grant | Busy:
    return run_now(store.acquire(wanted, CALL))


@contextlib.contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


# Files that are not ours, or not ours yet.


def test_an_empty_file_becomes_a_store(path: Path, store: SqliteStore) -> None:
    path.touch()
    assert isinstance(acquire(store, ask()), Grant)


def test_a_file_that_is_not_a_database_is_refused_and_left_as_it_was(path: Path, store: SqliteStore) -> None:
    content = b"important notes, not a database\n" * 100
    path.write_bytes(content)
    with pytest.raises(Misconfigured, match=r"leases\.db is not an SQLite database"):
        acquire(store, ask())
    assert path.read_bytes() == content


def test_a_damaged_file_is_refused(path: Path, store: SqliteStore) -> None:
    acquire(store, ask())
    run_now(store.close())
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(Misconfigured, match="damaged"):
        acquire(store, ask("other"))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE holdfast_lease (mine TEXT)",
        "CREATE TABLE holdfast_meta (mine TEXT)",
        "CREATE TABLE holdfast_meta (name TEXT, value TEXT)",
        "CREATE VIEW holdfast_meta AS SELECT 'format' AS name, 'other' AS value",
    ],
)
def test_tables_that_only_look_like_ours_are_refused_and_left_alone(
    path: Path, store: SqliteStore, statement: str
) -> None:
    with database(path) as other:
        other.execute(statement)
        before = other.execute("SELECT * FROM sqlite_master").fetchall()
    with pytest.raises(Misconfigured, match="are not Holdfast's"):
        acquire(store, ask())
    with database(path) as other:
        assert other.execute("SELECT * FROM sqlite_master").fetchall() == before


def test_a_newer_schema_is_refused_and_left_alone(path: Path, store: SqliteStore) -> None:
    acquire(store, ask())
    run_now(store.close())
    with database(path) as newer:
        newer.execute("UPDATE holdfast_meta SET value = '2' WHERE name = 'schema'")
    with pytest.raises(Misconfigured, match="schema version 2, made by a newer Holdfast"):
        acquire(store, ask())


def test_an_older_schema_is_brought_up_to_date_with_its_leases(path: Path) -> None:
    with database(path) as file:
        file.execute("CREATE TABLE holdfast_meta (name TEXT PRIMARY KEY, value TEXT)")
        file.execute("INSERT INTO holdfast_meta VALUES ('format', 'holdfast'), ('schema', '0')")
        file.execute("CREATE TABLE holdfast_lease (key TEXT)")
        file.execute("INSERT INTO holdfast_lease VALUES ('old')")
        steps = {
            0: "-- first\nALTER TABLE holdfast_lease ADD COLUMN fence INTEGER;\nUPDATE holdfast_lease SET fence = 7;\n",
            1: "CREATE TRIGGER holdfast_t AFTER INSERT ON holdfast_lease BEGIN\n  SELECT 1;\n  SELECT 2;\nEND;\n",
        }
        schema.ensure(file, "f", version=2, migrations=steps)
        schema.ensure(file, "f", version=2, migrations={})  # nothing is left to do
        assert file.execute("SELECT key, fence FROM holdfast_lease").fetchall() == [("old", 7)]
        assert file.execute("SELECT value FROM holdfast_meta WHERE name = 'schema'").fetchall() == [("2",)]


def test_a_migration_that_fails_leaves_the_old_version_whole(path: Path) -> None:
    with database(path) as file:
        file.execute("CREATE TABLE holdfast_meta (name TEXT PRIMARY KEY, value TEXT)")
        file.execute("INSERT INTO holdfast_meta VALUES ('format', 'holdfast'), ('schema', '0')")
        steps = {0: "CREATE TABLE holdfast_new (x);\n", 1: "INSERT INTO nowhere VALUES (1);\n"}
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            schema.ensure(file, "f", version=2, migrations=steps)
        with pytest.raises(Misconfigured, match=r"schema version 0, which .* cannot bring up to 2"):
            schema.ensure(file, "f", version=2, migrations={0: steps[0]})
        assert not file.in_transaction
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert names == ["holdfast_meta"]
        assert file.execute("SELECT value FROM holdfast_meta WHERE name = 'schema'").fetchall() == [("0",)]


def test_every_step_from_the_oldest_known_schema_is_there() -> None:
    assert sorted(schema.MIGRATIONS) == list(range(min(schema.MIGRATIONS, default=schema.VERSION), schema.VERSION))


def test_many_processes_may_create_the_same_file_concurrently(path: Path) -> None:
    script = (
        "import sys; from holdfast.stores.sqlite.engine import open_engine\n"
        "from holdfast.runtime.run_sync import run_now\n"
        "from holdfast.types import AcquireRequest; sys.stdin.read()\n"
        "store = open_engine('sqlite:///' + sys.argv[1]).blocking\n"
        "print(type(run_now(store.acquire(AcquireRequest('k', sys.argv[2], 'o', 'f', 10**12), 30 * 10**9))).__name__)\n"
        "run_now(store.close())"
    )
    # A kept pipe holds them all at the start, and one of them may live to the end so that its lease is not reclaimed.
    many = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    for each in many:
        assert each.stdin is not None
        each.stdin.close()
        each.stdin = None
    answers = [each.communicate(timeout=60)[0].strip() for each in many]
    assert [each.returncode for each in many] == [0] * 6
    assert set(answers) <= {"Grant", "Busy"}
    assert "Grant" in answers


def test_leases_live_beside_the_tables_of_the_user(path: Path, store: SqliteStore) -> None:
    with database(path) as user:
        user.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, fence INTEGER)")
        user.execute("INSERT INTO invoice VALUES (42, 0)")
        grant = acquire(store, ask())
        assert isinstance(grant, Grant)
        user.execute("UPDATE invoice SET fence = ? WHERE id = 42", (grant.fence,))
        assert user.execute("SELECT fence FROM invoice").fetchall() == [(grant.fence,)]
    assert run_now(store.release("k", "t", None, 0, CALL)) is True


def test_the_audit_trail_can_only_be_appended_to(path: Path, store: SqliteStore) -> None:
    acquire(store, ask())
    record = run_now(store.force_release("k", "operator", "stuck", CALL))
    with database(path) as writer:
        for statement in ("DELETE FROM holdfast_audit", "UPDATE holdfast_audit SET reason = 'none'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                writer.execute(statement)
    assert run_now(store.audit(10, CALL)) == [record]


# Places that do not work.


def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    store = SqliteEngine(str(tmp_path / "no" / "where" / "leases.db")).blocking
    with pytest.raises(Misconfigured, match=r"the directory .*/no/where does not exist"):
        acquire(store, ask())
    assert not (tmp_path / "no").exists()


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="is a directory"):
        acquire(SqliteEngine(str(tmp_path)).blocking, ask())


@pytest.mark.parametrize(("file_mode", "directory_mode"), [(0o444, 0o777), (0o444, 0o555), (None, 0o555), (0, 0o777)])
def test_a_file_or_directory_that_cannot_be_written_is_a_clear_error(file_mode: int, directory_mode: int) -> None:
    directory = Path(tempfile.mkdtemp())  # not under tmp_path, which another user cannot reach
    path = directory / "leases.db"
    try:
        if file_mode is not None:
            store = SqliteEngine(str(path)).blocking
            acquire(store, ask())
            run_now(store.close())
            path.chmod(file_mode)
        directory.chmod(directory_mode)

        def refused() -> object:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)  # permissions mean nothing to root
            return acquire(SqliteEngine(str(path)).blocking, ask("other"))

        answer = in_a_child(refused)
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)
    assert answer.startswith(f"Misconfigured: {path} cannot be ")
    assert "permission" in answer or "directory can be written" in answer


def test_a_file_that_cannot_grow_is_unavailable_and_keeps_what_it_has(path: Path, store: SqliteStore) -> None:
    assert isinstance(acquire(store, ask("first", "kept")), Grant)
    store.leases.file.run(
        lambda each: each.execute(f"PRAGMA max_page_count = {each.execute('PRAGMA page_count').fetchone()[0]}"), CALL
    )
    with pytest.raises(Unavailable, match="nothing was changed"):
        [
            acquire(store, AcquireRequest(f"{number}:" + "x" * 500, "t", "o" * 2000, "f", 60 * NS))
            for number in range(1000)
        ]
    assert isinstance(acquire(store, ask("second", "kept")), Busy)
    assert run_now(store.release("kept", "first", None, 0, CALL)) is True


def test_a_full_disk_is_a_store_error_and_loses_nothing(path: Path, store: SqliteStore) -> None:
    """The limit on the size of files stands in for the disk: writing past it fails in the same way."""
    assert isinstance(acquire(store, ask("first", "kept")), Grant)

    def fill_up() -> object:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        other = SqliteEngine(str(path)).blocking
        run_now(other.ping(CALL))
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, 256 * 1024))
        granted = 0
        try:
            for number in range(1000):
                granted += isinstance(
                    acquire(other, AcquireRequest(f"{number}:" + "x" * 400, "t", "o", "f", 60 * NS)), Grant
                )
        except BackendError as error:
            shown = run_now(other.holdings("", 2000, CALL))
            return type(error).__name__, granted > 0, len(shown) - granted
        return None

    assert in_a_child(fill_up) == "('Unavailable', True, 1)"  # the one that is kept, and what was granted: no more
    assert isinstance(acquire(store, ask("second", "kept")), Busy)
    assert isinstance(acquire(store, ask("x", "another")), Grant)
    assert store.leases.file.run(lambda each: each.execute("PRAGMA integrity_check").fetchall(), CALL) == [("ok",)]


def test_a_network_file_system_is_warned_about_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sqlite_file, "is_shared", lambda _path: True)
    store = SqliteEngine(str(path)).blocking
    with pytest.warns(RuntimeWarning, match="does not work across machines"):
        assert isinstance(acquire(store, ask()), Grant)
    run_now(store.close())
    assert isinstance(acquire(store, ask()), Grant)  # and here a warning would be an error
    run_now(store.close())


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/data/leases.db", "ext4", False),
        ("/data/team share/leases.db", "nfs4", True),
        ("/data/team share2/leases.db", "ext4", False),
        ("/mnt/s/x/leases.db", "fuse.sshfs", True),
        ("/mnt/over/leases.db", "tmpfs", False),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(
    tmp_path: Path, path: str, kind: str, shared: bool
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "30 22 0:30 / /data/team\\040share rw shared:2 master:1 - nfs4 server:/x rw\n"
        "31 22 0:31 / /mnt/s rw - fuse.sshfs me@there: rw\n"
        "32 22 0:32 / /mnt/over rw - nfs server:/y rw\n"
        "33 22 0:33 / /mnt/over rw - tmpfs tmpfs rw\n"
        "garbage\n"
    )
    assert mounts.file_system(path, str(table)) == kind
    assert mounts.is_shared(path, str(table)) is shared
    assert mounts.file_system(path, str(tmp_path / "nothing")) == ""


def test_an_sqlite_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(Misconfigured, match=r"3\.35"):
        SqliteEngine(str(path))


# Others at the same file.


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite:///{}?busy_timeout=0.01"])
def test_a_long_transaction_of_another_connection_is_unavailable_after_the_time_limit_and_has_no_effect(
    path: Path, url: str
) -> None:
    store = open_engine(url.format(path)).blocking
    run_now(store.ping(CALL))
    timeout = 20 * MS if "busy_timeout" not in url else 3600 * NS
    with database(path) as other:
        other.execute("BEGIN IMMEDIATE")
        for call in (
            store.acquire(ask(), timeout),
            store.acquire(AcquireRequest("k", "t", "o", "f", NS, "ticket", NS), timeout),
            store.release("k", "t", None, 0, timeout),
            store.ping(timeout),
        ):
            with pytest.raises(Unavailable, match="locked by another writer; nothing was changed"):
                run_now(call)
        assert run_now(store.inspect("k", timeout)) is None  # readers are not held up
        other.execute("ROLLBACK")
    assert isinstance(acquire(store, ask("other")), Grant)
    run_now(store.close())


def test_a_call_goes_through_as_soon_as_the_other_writer_is_done(path: Path, store: SqliteStore) -> None:
    run_now(store.ping(CALL))
    answers: list[Grant | Busy] = []
    with database(path) as other:
        other.execute("BEGIN IMMEDIATE")
        waiter = threading.Thread(target=lambda: answers.append(run_now(store.acquire(ask(), 60 * NS))))
        waiter.start()
        other.execute("COMMIT")
        waiter.join(60)
    assert [type(each) for each in answers] == [Grant]


def test_a_deleted_file_is_noticed_and_created_again(path: Path, store: SqliteStore) -> None:
    """Otherwise this process would continue with a file that no other process can see."""
    acquire(store, ask("first"))
    for part in path.parent.iterdir():
        part.unlink()
    assert run_now(store.inspect("k", CALL)) is None
    assert path.exists()
    other = SqliteEngine(str(path)).blocking
    assert isinstance(acquire(other, ask("second")), Grant)
    assert isinstance(acquire(store, ask("third")), Busy)
    run_now(other.close())


def test_tables_that_were_dropped_by_hand_are_a_clear_error(path: Path, store: SqliteStore) -> None:
    acquire(store, ask("secret"))
    with database(path) as other:
        other.execute("DROP TABLE holdfast_lease")
    with pytest.raises(Misconfigured, match="changed by hand") as caught:
        run_now(store.release("k", "secret", None, 0, CALL))
    assert "secret" not in str(caught.value)


def test_a_closed_store_opens_the_file_again_when_it_is_used(path: Path, store: SqliteStore) -> None:
    assert isinstance(acquire(store, ask()), Grant)
    for _ in range(2):
        run_now(store.close())
    assert run_now(store.release("k", "t", None, 0, CALL)) is True
