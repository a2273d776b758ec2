"""Guarded files when the disk, the permissions, the lock or the memory itself are in the way."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import failpoints
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BackendError, FencedOut, Misconfigured, Unavailable
from holdfast.guards import Fenced
from holdfast.guards.files import GuardedFiles, flock, flow, generation
from holdfast.guards.files.names import draft_name, generation_name
from support.fixtures.guards import carried

A, B, C = carried(1), carried(2), carried(3)
OTHER_USER = 65534


@pytest.fixture
def files(tmp_path: Path) -> GuardedFiles[Fenced]:
    return GuardedFiles(tmp_path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach too."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-files-"))
    path.chmod(0o777)
    yield path
    path.chmod(0o777)
    shutil.rmtree(path)


@contextmanager
def as_other_user() -> Iterator[None]:
    """Without the rights of root, if this is root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(OTHER_USER)
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """The kernel ends every write there, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def failing_sync(monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool], error: int = errno.EIO) -> None:
    """Have the disk refuse to sync some descriptors."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if when(descriptor):
            raise OSError(error, os.strerror(error))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def opened_as(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


def test_when_there_is_no_room_for_the_new_content_everything_stays_as_it_was(
    files: GuardedFiles[Fenced], tmp_path: Path
) -> None:
    files.write(A, "x", b"old")
    with files_no_longer_than(100_000), pytest.raises(Unavailable, match="the file is as it was"):
        files.write(B, "x", b"n" * 1_000_000)
    assert ((tmp_path / "x").read_bytes(), files.seen("x")) == (b"old", 1)
    assert not (tmp_path / draft_name("x")).exists()
    files.write(B, "x", b"new")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_content_that_cannot_be_made_safe_does_not_take_the_place_of_the_old(
    files: GuardedFiles[Fenced], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    files.write(A, "x", b"old")
    with monkeypatch.context() as patch:
        failing_sync(patch, lambda descriptor: opened_as(descriptor) == draft_name("x"), error)
        with pytest.raises(Unavailable, match=os.strerror(error)):
            files.write(B, "x", b"new")
    assert ((tmp_path / "x").read_bytes(), files.seen("x")) == (b"old", 1)
    assert not (tmp_path / draft_name("x")).exists()


@pytest.mark.parametrize("step", ["enter", "write", "delete"])
def test_a_fence_that_cannot_be_stored_admits_no_write(
    files: GuardedFiles[Fenced], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    files.write(A, "x", b"old")
    with monkeypatch.context() as patch:
        failing_sync(patch, lambda descriptor: opened_as(descriptor) == generation_name("x"))
        with pytest.raises(Unavailable):
            getattr(files, step)(B, "x", *([b"new"] if step == "write" else []))
    assert (tmp_path / "x").read_bytes() == b"old"
    assert files.seen("x") in {1, 2}
    assert files.enter(B, "x") == b"old"


def test_a_change_that_may_not_last_is_told_apart_from_one_that_was_not_made(
    files: GuardedFiles[Fenced], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(A, "x", b"old")
    replaced = False

    def note() -> None:
        nonlocal replaced
        replaced = True

    with monkeypatch.context() as patch, failpoints.armed("guard.replaced", note):
        failing_sync(patch, lambda descriptor: replaced)
        with pytest.raises(BackendError, match="may not survive a power failure") as told:
            files.write(B, "x", b"new")
    assert type(told.value) is BackendError
    assert ((tmp_path / "x").read_bytes(), files.seen("x")) == (b"new", 2)


def test_the_fence_is_safe_before_the_content_takes_its_place_and_the_folder_after_it(
    files: GuardedFiles[Fenced], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of what reaches the disk, which no kill of a process can show."""
    files.write(A, "x", b"old")
    order: list[str] = []

    def watch(name: str, say: Callable[..., str]) -> None:
        real = getattr(os, name)

        def watched(*args: Any, **options: Any) -> Any:
            order.append(say(*args))
            return real(*args, **options)

        monkeypatch.setattr(os, name, watched)

    watch("fsync", lambda descriptor: f"sync {opened_as(descriptor)}")
    watch("rename", lambda *names: "rename")
    watch("pwrite", lambda *where: "fence")
    files.write(B, "x", b"new")
    memory, folder = f"sync {generation_name('x')}", f"sync {tmp_path.name}"
    assert order == [f"sync {draft_name('x')}", memory, "fence", memory, folder, "rename", folder]


def test_a_folder_that_may_not_be_written_to_is_named(open_folder: Path) -> None:
    (open_folder / "x").write_bytes(b"old")
    open_folder.chmod(0o555)
    with as_other_user():
        files = GuardedFiles(open_folder)
        with pytest.raises(Misconfigured, match="Permission denied"):
            files.write(A, "x", b"new")
        with pytest.raises(Misconfigured, match="Permission denied"):
            files.enter(A, "x")
    assert [path.name for path in open_folder.iterdir()] == ["x"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_whose_owner_cannot_be_kept_is_not_replaced(open_folder: Path) -> None:
    (open_folder / "x").write_bytes(b"root's")
    (open_folder / "x").chmod(0o666)
    with as_other_user():
        with pytest.raises(Misconfigured, match="belongs to user 0 and group 0"):
            GuardedFiles(open_folder).write(A, "x", b"unwritten")
        assert GuardedFiles(open_folder).seen("x") is None
    assert (open_folder / "x").read_bytes() == b"root's"
    assert not (open_folder / draft_name("x")).exists()


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    files = GuardedFiles(folder)
    folder.rmdir()
    with pytest.raises(Misconfigured, match="gone/x: No such file"):
        files.write(A, "x", b"")
    with pytest.raises(Misconfigured):
        files.seen("x")


def test_a_network_file_system_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "is_shared", lambda path: True)
    monkeypatch.setattr(flow, "file_system", lambda path: "nfs4")
    with pytest.warns(RuntimeWarning, match="network file system \\(nfs4\\)") as warned:
        GuardedFiles(tmp_path)
    assert warned[0].filename == __file__


# The lock.


def test_a_step_that_never_ends_holds_others_up_no_longer_than_their_timeout(tmp_path: Path) -> None:
    files = GuardedFiles(tmp_path, timeout=0.02)
    files.write(A, "x", b"1")
    with (tmp_path / generation_name("x")).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="in the middle of a step"):
            files.write(B, "x", b"2")
        with pytest.raises(Unavailable, match="in the middle of a step"):
            files.enter(B, "x")
        assert files.seen("x") == 1  # looking needs no lock
        files.write(B, "y", b"of its own")
    assert (tmp_path / "x").read_bytes() == b"1"
    files.write(B, "x", b"2")


def test_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    """Record locks would let both in: they belong to the process."""
    files = GuardedFiles(tmp_path, timeout=30)
    inside, most, mutex = 0, 0, threading.Lock()

    def count(change: int) -> None:
        nonlocal inside, most
        with mutex:
            inside += change
            most = max(most, inside)

    def write_ten() -> None:
        for _ in range(10):
            files.write(A, "x", bytes(1000))

    with failpoints.armed("guard.generation", lambda: count(1)), failpoints.armed("guard.written", lambda: count(-1)):
        threads = [threading.Thread(target=write_ten) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (inside, most) == (0, 1)
    assert files.statistics().accepted == 60


def test_a_lock_on_a_file_that_was_deleted_meanwhile_does_not_count(tmp_path: Path) -> None:
    files = GuardedFiles(tmp_path, timeout=30)
    files.write(A, "x", b"1")
    memory = tmp_path / generation_name("x")
    with memory.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Event()
        real = flock.opened

        @contextmanager
        def opened(path: str, flags: int, **options: int) -> Iterator[int]:
            with real(path, flags, **options) as descriptor:
                waiting.set()
                yield descriptor

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generation, "opened", opened)
            writer = threading.Thread(target=lambda: files.write(B, "x", b"2"))
            writer.start()
            assert waiting.wait(30)
            memory.unlink()
            fcntl.flock(other, fcntl.LOCK_UN)
            writer.join()
    assert ((tmp_path / "x").read_bytes(), files.seen("x")) == (b"2", 2)


def test_memory_that_is_taken_away_under_a_step_is_noticed(files: GuardedFiles[Fenced], tmp_path: Path) -> None:
    files.write(A, "x", b"1")
    with (
        failpoints.armed("guard.generation", (tmp_path / generation_name("x")).unlink),
        pytest.raises(Misconfigured, match="deleted or replaced"),
    ):
        files.write(B, "x", b"2")
    assert (tmp_path / "x").read_bytes() == b"1"


# The memory.


def test_damaged_memory_admits_no_write(files: GuardedFiles[Fenced], tmp_path: Path) -> None:
    files.write(A, "x", b"1")
    (tmp_path / generation_name("x")).write_bytes(b"?" * 5000)
    with pytest.raises(Misconfigured, match="is damaged"):
        files.write(FAR, "x", b"2")
    with pytest.raises(Misconfigured, match="is damaged"):
        files.enter(FAR, "x")
    with pytest.raises(Misconfigured, match="is damaged"):
        files.seen("x")
    assert (tmp_path / "x").read_bytes() == b"1"


FAR = carried(FENCE_MAX)


@pytest.mark.parametrize("left", [b"", b"\0" * 4096, b"holdfast-fence 1 no", b"holdfast-fence 1 none 00000000\n"])
def test_memory_whose_maker_was_killed_before_it_was_ready_is_created_again(
    files: GuardedFiles[Fenced], tmp_path: Path, left: bytes
) -> None:
    (tmp_path / generation_name("x")).write_bytes(left)
    assert files.seen("x") is None
    files.write(A, "x", b"1")
    assert files.seen("x") == 1


def test_memory_that_is_no_regular_file_is_refused(files: GuardedFiles[Fenced], tmp_path: Path) -> None:
    (tmp_path / generation_name("x")).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Misconfigured):
        files.write(A, "x", b"1")
    os.mkfifo(tmp_path / generation_name("y"))
    with pytest.raises(Misconfigured):
        files.write(A, "y", b"1")
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "x").exists()


@given(
    fences=st.lists(st.integers(0, FENCE_MAX), min_size=1, max_size=6, unique=True).map(sorted),
    torn=st.integers(0, 64),
    garbage=st.binary(min_size=64, max_size=64),
)
def test_a_fence_that_was_torn_while_it_was_written_leaves_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, fences: list[int], torn: int, garbage: bytes
) -> None:
    """Power fails in the middle of the last record: some of its bytes are new, and the others anything."""
    folder = tmp_path_factory.mktemp("torn")
    files = GuardedFiles(folder)
    for fence in fences[:-1]:
        files.enter(carried(fence), "x")
    previous = files.seen("x")
    memory = folder / generation_name("x")
    before = memory.read_bytes() if memory.exists() else b""
    files.enter(carried(fences[-1]), "x")
    after = memory.read_bytes()
    changed = 4096 if len(before) <= 4096 or before[4096:] != after[4096:] else 0
    memory.write_bytes(after[: changed + torn] + garbage[torn:] + after[changed + 64 :])
    assert files.seen("x") in {previous, fences[-1]}
    if previous is not None and previous > 0:
        with pytest.raises(FencedOut):
            files.enter(carried(previous - 1), "x")
    files.write(FAR, "x", b"")
    assert files.seen("x") == FENCE_MAX
