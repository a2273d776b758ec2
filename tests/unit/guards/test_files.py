"""Guarded files: refusals, sections, deletion, names, what is kept of a replaced file, and the awaited color."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core import failpoints
from holdfast.errors import (
    BadInput,
    Closed,
    FencedOut,
    LeaseLost,
    NotEntered,
    RowMissing,
    Unfenced,
)
from holdfast.guards import CarriedFence, Fenced, GuardStatistics
from holdfast.guards.aio import files as aio
from holdfast.guards.files import GuardedFiles
from holdfast.guards.files.names import draft_name, generation_name
from support.fixtures.guards import carried

A, B = carried(1), carried(2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "reports"
    path.mkdir()
    return path


@pytest.fixture
def files(folder: Path) -> GuardedFiles[Fenced]:
    return GuardedFiles(folder)


def content(folder: Path) -> dict[str, bytes]:
    """Everything that a refused step must leave alone."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.requires("R58", "R47")
def test_writes_are_accepted_in_order_and_again_under_the_same_fence(files: GuardedFiles[Fenced], folder: Path) -> None:
    files.write(A, "july.json", b"one")
    files.write(A, "july.json", "zwölf")
    files.write(B, "july.json", b"three")
    assert (folder / "july.json").read_bytes() == b"three"
    assert files.seen("july.json") == 2
    assert files.statistics() == GuardStatistics(accepted=3)


@pytest.mark.requires("R58", "R65")
@pytest.mark.parametrize("step", ["enter", "write", "delete"])
def test_a_lower_fence_is_refused_and_changes_nothing(files: GuardedFiles[Fenced], folder: Path, step: str) -> None:
    files.write(B, "july.json", b"newer")
    before = content(folder)
    with pytest.raises(FencedOut) as refused:
        getattr(files, step)(A, "july.json", *([b"stale"] if step == "write" else []))
    assert (refused.value.fence, refused.value.seen, refused.value.resource) == (1, 2, "reports/july.json")
    assert content(folder) == before
    assert files.statistics() == GuardStatistics(accepted=1, refused=1)


@pytest.mark.requires("R69", "R71")
def test_nothing_can_come_between_the_read_of_a_section_and_its_write(files: GuardedFiles[Fenced]) -> None:
    files.write(A, "total", "10")
    with files.section(B, "total") as total:
        with pytest.raises(FencedOut):
            files.write(A, "total", "11")
        total.replace(str(int(total.text()) + 5))
        assert (total.text(), total.data, total.exists) == ("15", b"15", True)
    assert files.enter(B, "total") == b"15"


def test_a_section_is_over_for_its_holder_when_a_newer_one_has_entered(files: GuardedFiles[Fenced]) -> None:
    with files.section(A, "total") as total:
        files.enter(B, "total")
        with pytest.raises(FencedOut):
            total.replace("stale")
        with pytest.raises(FencedOut):
            total.delete()
    assert files.enter(B, "total") is None


def test_a_file_that_does_not_exist_can_be_made_in_its_section(files: GuardedFiles[Fenced]) -> None:
    with files.section(A, "new") as file:
        assert (file.exists, file.data, file.name) == (False, None, "new")
        with pytest.raises(RowMissing, match="does not exist"):
            file.text()
        with pytest.raises(RowMissing):
            file.delete()
        file.replace(b"")
        assert (file.exists, file.data) == (True, b"")
    assert files.enter(A, "new") == b""


def test_nothing_can_be_written_after_the_section(files: GuardedFiles[Fenced]) -> None:
    with files.section(A, "total") as total:
        total.replace("1")
    assert total.text() == "1"
    assert repr(total) == "<GuardedFile reports/total 1 bytes>"
    with pytest.raises(Closed, match="is over"):
        total.replace("2")
    with pytest.raises(Closed, match="is over"):
        total.delete()


@pytest.mark.requires("R58")
def test_deleting_leaves_a_memory(files: GuardedFiles[Fenced], folder: Path) -> None:
    files.write(A, "july.json", b"one")
    with files.section(B, "july.json") as file:
        file.delete()
        assert not file.exists
    assert not (folder / "july.json").exists()
    assert files.seen("july.json") == 2
    with pytest.raises(FencedOut):
        files.write(A, "july.json", b"back")
    with pytest.raises(FencedOut):
        files.enter(A, "july.json")
    with pytest.raises(FencedOut):
        files.delete(A, "july.json")
    with pytest.raises(RowMissing):
        files.delete(B, "july.json")
    files.write(B, "july.json", b"again")
    assert files.statistics() == GuardStatistics(entered=1, accepted=3, refused=3, missing=1)


def test_a_registration_that_was_restored_away_is_found(files: GuardedFiles[Fenced], folder: Path) -> None:
    files.write(A, "total", "1")
    copy = (folder / generation_name("total")).read_bytes()
    with files.section(B, "total") as total:
        (folder / generation_name("total")).write_bytes(copy)
        with pytest.raises(NotEntered) as gone:
            total.replace("2")
    assert (gone.value.fence, gone.value.seen) == (2, 1)
    assert (folder / "total").read_bytes() == b"1"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "/etc/passwd",
            "nul\0",
            "line\n",
            "x" * 201,
            "é" * 101,
            "\ud800",
            b"x",
            None,
            7,
        ),
        *(".holdfast.x.fence", ".holdfast.x.new", ".HoldFast.x"),
    ],
)
@pytest.mark.parametrize("step", ["enter", "write", "delete", "seen", "section"])
def test_names_that_lead_elsewhere_are_refused(files: GuardedFiles[Fenced], folder: Path, step: str, name: Any) -> None:
    with pytest.raises(BadInput) as refused:
        if step == "section":
            with files.section(A, name):
                pytest.fail("let in")
        else:
            getattr(files, step)(*([] if step == "seen" else [A]), name, *([b""] if step == "write" else []))
    assert refused.value.field == "name"
    assert content(folder) == {}


@pytest.mark.parametrize("name", ["x", "a b", ".hidden", "-rf", "é" * 100, "x" * 200, "back\\slash", ".holdfastish"])
def test_plain_names_of_all_kinds_are_files(files: GuardedFiles[Fenced], folder: Path, name: str) -> None:
    files.write(A, name, name)
    assert (folder / name).read_text() == name
    assert sorted(content(folder)) == sorted([name, generation_name(name)])


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
@pytest.mark.parametrize("step", ["enter", "write", "delete"])
def test_only_regular_files_are_guarded(folder: Path, tmp_path: Path, kind: str, step: str) -> None:
    outside = tmp_path / "outside"
    place = folder / "x"
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        if kind == "link":
            outside.write_text("precious")
        place.symlink_to(outside)
    files = GuardedFiles(folder)
    with pytest.raises(BadInput, match="symbolic link" if kind in {"link", "dangling"} else "not a regular file"):
        getattr(files, step)(A, "x", *([b"new"] if step == "write" else []))
    assert files.seen("x") is None
    assert not outside.exists() or outside.read_text() == "precious"


def test_a_lease_of_another_lock_is_refused(folder: Path) -> None:
    files = GuardedFiles(folder, key="report:{name}")
    files.write(CarriedFence("report:july.json", 1), "july.json", b"")
    with pytest.raises(BadInput, match=r"hold 'report:august\.json'"):
        files.write(CarriedFence("report:july.json", 1), "august.json", b"")
    with pytest.raises(BadInput, match="there is name"):
        GuardedFiles(folder, key="report:{id}")


@pytest.mark.parametrize("data", [None, 7, ["x"], "\ud800"])
def test_content_is_bytes_or_text(files: GuardedFiles[Fenced], folder: Path, data: Any) -> None:
    with pytest.raises(BadInput) as refused:
        files.write(A, "x", data)
    assert refused.value.field == "data"
    assert content(folder) == {}


@pytest.mark.parametrize("wrong", ["", "missing", None, 7, "nul\0"])
def test_the_folder_must_exist(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(BadInput) as refused:
        GuardedFiles(tmp_path / wrong if wrong == "missing" else wrong)
    assert refused.value.field == "folder"


def test_a_folder_of_any_name_can_be_guarded(tmp_path: Path) -> None:
    folder = tmp_path / ("Büro & Söhne " * 9)
    folder.mkdir()
    GuardedFiles(str(folder)).write(A, "x", b"1")
    assert (folder / "x").read_bytes() == b"1"


def test_a_held_lease_writes_and_a_lost_one_is_refused_before_anything_is_written(
    files: GuardedFiles[Fenced], folder: Path, lease: holdfast.Lease
) -> None:
    files.write(lease, "x", b"1")
    before = content(folder)
    lease.release()
    with pytest.raises(LeaseLost):
        files.write(lease, "x", b"2")
    assert content(folder) == before
    files.enter(carried(lease.fence + 1), "x")
    with pytest.raises(FencedOut):
        files.write(lease, "x", b"2")
    assert files.statistics() == GuardStatistics(accepted=1, entered=1, lost=1, refused=1)


def test_a_degraded_lease_needs_leave_and_leaves_the_fence_alone(
    files: GuardedFiles[Fenced], folder: Path, degraded: holdfast.DegradedLease
) -> None:
    files.write(B, "x", b"1")
    with pytest.raises(Unfenced):
        files.write(degraded, "x", b"2")  # type: ignore[arg-type]
    lenient = GuardedFiles(folder, allow_degraded=True)
    with lenient.section(degraded, "x") as file:
        assert file.data == b"1"
        file.replace(b"2")
    assert ((folder / "x").read_bytes(), files.seen("x")) == (b"2", 2)
    lenient.delete(degraded, "x")
    assert (lenient.enter(degraded, "x"), files.seen("x")) == (None, 2)
    assert lenient.statistics() == GuardStatistics(unfenced=4)


def test_mode_and_attributes_of_a_replaced_file_are_kept(files: GuardedFiles[Fenced], folder: Path) -> None:
    path = folder / "x"
    path.write_bytes(b"1")
    path.chmod(0o2640)
    try:
        os.setxattr(path, "user.colour", b"green")
        colour = b"green"
    except OSError:
        colour = b""  # this file system keeps none
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
        path.chmod(0o2640)  # chown clears the group bit
    before = path.stat()
    files.write(A, "x", b"2")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    assert not colour or os.getxattr(path, "user.colour") == colour


def test_a_new_file_has_the_mode_that_any_new_file_has(files: GuardedFiles[Fenced], folder: Path) -> None:
    (folder / "other").touch()
    files.write(A, "x", b"1")
    assert stat.S_IMODE((folder / "x").stat().st_mode) == stat.S_IMODE((folder / "other").stat().st_mode)


@pytest.mark.parametrize("step", ["enter", "write", "delete"])
def test_what_a_killed_writer_left_is_removed_by_the_next_step(
    files: GuardedFiles[Fenced], folder: Path, step: str
) -> None:
    files.write(A, "x", b"1")
    (folder / draft_name("x")).write_bytes(b"half")
    getattr(files, step)(B, "x", *([b"2"] if step == "write" else []))
    assert not (folder / draft_name("x")).exists()


def test_the_folder_may_be_renamed_while_it_is_used(files: GuardedFiles[Fenced], folder: Path) -> None:
    moved = folder.parent / "moved"
    with failpoints.armed("guard.generation", lambda: folder.rename(moved)):
        files.write(A, "x", b"1")
    assert sorted(content(moved)) == [generation_name("x"), "x"]


# The awaited color. The conformance kit covers the rule; here is what only asyncio has.


@pytest.mark.asyncio
async def test_awaited_sections_read_write_and_refuse(folder: Path) -> None:
    files = aio.GuardedFiles(folder, key="invoice:{name}")
    async with files.section(A, "42") as file:
        assert not file.exists
        await file.replace("one")
        assert file.text() == "one"
    await files.write(B, "42", b"two")
    with pytest.raises(FencedOut):
        await files.enter(A, "42")
    async with files.section(B, "42") as file:
        await file.delete()
    assert (await files.seen("42"), await files.enter(B, "42")) == (2, None)
    with pytest.raises(Closed):
        await file.replace("late")
    with pytest.raises(RowMissing):
        await files.delete(B, "42")
    assert files.statistics() == GuardStatistics(entered=3, accepted=3, refused=1, missing=1)


@pytest.mark.asyncio
@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_cancelled_write_is_seen_to_its_end_before_the_cancellation_goes_on(
    folder: Path, cancellations: int
) -> None:
    files = aio.GuardedFiles(folder)
    reached, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.call_soon_threadsafe(reached.set)
        assert go.wait(30)

    with failpoints.armed("guard.generation", stop):
        writing = asyncio.create_task(files.write(A, "x", b"1"))
        await reached.wait()
        for _ in range(cancellations):
            writing.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not writing.done()
        assert not (folder / "x").exists()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert ((folder / "x").read_bytes(), await files.seen("x")) == (b"1", 1)
    await files.write(B, "x", b"2")


@pytest.mark.asyncio
async def test_a_cancelled_write_that_fails_is_a_cancellation(folder: Path) -> None:
    files = aio.GuardedFiles(folder)
    await files.write(B, "x", b"2")
    reached, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def fail() -> None:
        loop.call_soon_threadsafe(reached.set)
        assert go.wait(30)
        raise OSError(5, "Input/output error")

    with failpoints.armed("guard.generation", fail):
        writing = asyncio.create_task(files.write(B, "x", b"3"))
        await reached.wait()
        writing.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert (folder / "x").read_bytes() == b"2"
