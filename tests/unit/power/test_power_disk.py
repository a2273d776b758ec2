"""The model of a disk that loses power: what may be left, of histories that were written by hand or drawn."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.power.disk import VARIANTS, Disk, File, Variant
from support.power.harness import Kind, PowerStage, Record

INODE = 10**9  # no file of this machine


class Story:
    """A disk, and what happens to it."""

    def __init__(self, directory: Path) -> None:
        self.stage = PowerStage(directory, Path("no library"))
        (self.stage.disk / "old").write_bytes(b"old")
        self.stage.begin()
        self.disk = Disk(self.stage)
        self._images = 0

    def happen(
        self, kind: Kind, inode: int = 0, offset: int = 0, names: tuple[str, ...] = (), data: bytes = b""
    ) -> None:
        first, second = (*(str(self.stage.disk / name) for name in names), "", "")[:2]
        self.disk.happen(Record(kind, inode, offset, first, second, data))

    def make(self, name: str, data: bytes, inode: int = INODE) -> None:
        self.happen(Kind.CREATE, inode, names=(name,))
        self.happen(Kind.WRITE, inode, data=data)

    def sync(self, name: str | int) -> None:
        self.happen(Kind.SYNC, self.stage.inodes[name] if isinstance(name, str) else name)

    def left(self, variant: Variant, seed: int = 0) -> dict[str, bytes]:
        self._images += 1
        target = self.stage.directory / f"image{self._images}"
        self.disk.image(target, variant, random.Random(seed))
        return {str(each.relative_to(target)): each.read_bytes() for each in target.rglob("*") if each.is_file()}


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_synced_file_without_a_synced_name_is_not_found(story: Story) -> None:
    story.make("new", b"new")
    story.sync(INODE)
    assert story.left("least") == {"old": b"old"}
    assert story.left("most") == story.left("torn") == {"old": b"old", "new": b"new"}
    story.sync(".")
    assert story.left("least") == {"old": b"old", "new": b"new"}


def test_a_synced_name_without_synced_content_is_an_empty_file_or_one_of_zeros(story: Story) -> None:
    story.make("new", b"new")
    story.sync(".")
    assert story.left("least")["new"] == b""
    assert story.left("hollow")["new"] == b"\0\0\0"
    assert {story.left("torn", seed)["new"] for seed in range(30)} == {b"", b"new", b"\0\0\0"}


def test_a_rename_that_was_not_synced_leaves_the_old_file_or_the_new_one_and_never_none(story: Story) -> None:
    story.make("draft", b"new")
    story.sync(INODE)
    story.sync(".")
    story.happen(Kind.RENAME, names=("draft", "old"))
    assert story.left("least") == {"old": b"old", "draft": b"new"}
    seen = [story.left("shuffled", seed) for seed in range(20)]
    assert sorted((each for index, each in enumerate(seen) if each not in seen[:index]), key=len) == [
        {"old": b"new"},
        {"old": b"old", "draft": b"new"},
    ]


def test_what_lies_in_a_directory_whose_own_name_is_not_safe_is_gone(story: Story) -> None:
    story.happen(Kind.MKDIR, INODE, names=("deep",))
    story.make("deep/file", b"x", INODE + 1)
    story.sync(INODE + 1)
    story.sync(INODE)
    assert story.left("least") == {"old": b"old"}
    story.sync(".")
    assert story.left("least") == {"old": b"old", "deep/file": b"x"}


def test_a_file_that_was_deleted_and_not_synced_may_come_back(story: Story) -> None:
    story.happen(Kind.UNLINK, names=("old",))
    assert story.left("least") == {"old": b"old"}
    assert story.left("most") == {}
    story.sync(".")
    assert story.left("least") == {}


changes = st.lists(
    st.one_of(
        st.builds(
            lambda offset, data: Record(Kind.WRITE, 0, offset, "", "", data),
            st.integers(0, 3000),
            st.binary(min_size=1, max_size=1500),
        ),
        st.builds(lambda size: Record(Kind.TRUNCATE, 0, size, "", "", b""), st.integers(0, 4000)),
    ),
    min_size=1,
    max_size=6,
)


@given(safe=st.binary(max_size=3000), since=changes, seed=st.integers(0, 2**32))
def test_each_sector_of_a_torn_file_is_as_it_was_at_some_moment(safe: bytes, since: list[Record], seed: int) -> None:
    moments = []
    for number in range(len(since) + 1):
        moments.append(bytes(File(safe=bytearray(safe), since=since[:number]).latest()))
    torn = bytes(File(safe=bytearray(safe), since=list(since)).torn(random.Random(seed)))
    assert len(torn) in {len(each) for each in moments}
    whole = [each.ljust(5000, b"\0") for each in moments]
    for begin in range(0, len(torn), 512):
        sector = torn[begin : begin + 512]
        # What was cut off may be seen as zeros, or as what it was, until the file is synced.
        assert any(each[begin : begin + len(sector)] == sector for each in whole)


@given(safe=st.binary(max_size=3000), since=changes)
def test_a_synced_file_is_the_same_in_every_variant(safe: bytes, since: list[Record]) -> None:
    file = File(safe=bytearray(safe), since=list(since))
    latest = bytes(file.latest())
    file.sync()
    assert {bytes(file.torn(random.Random(seed))) for seed in range(3)} == {latest}
    assert bytes(file.hollow()) == latest
    assert len(VARIANTS) == 5
