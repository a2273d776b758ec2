"""A disk that loses power: what may be on it afterwards, worked out from a trace of `power_stage`.

The model is what POSIX promises and not what one file system does. The content of a file is safe as of the last sync of
that file, by any writer; a name in a directory (made, renamed, removed) is safe as of the last sync of that
directory. A synced file in a directory that was not is a file without a name. A change that was not synced may be there
all the same, wholly, in part or not at all, in any order:

    least      nothing that was not synced is there
    most       everything is there, as after the crash of a process
    torn       names are there; of the content, some sectors (512 or 4096 bytes) are new and others old
    hollow     names and sizes are there, and new parts of files are full of zeros
    shuffled   some names are there and others not, in any order; content as in `torn`

A sector is never torn within, and holds what was written to it up to some moment: that is what disks do, and databases
rely on it (Postgres' control file fits one sector for this reason). What `Disk` does not model: disks that lie about
having written, and sectors that go bad by themselves.

`journalled`: a sync of anything makes every name safe that was changed before, as ext4 and XFS do it in practice.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Literal, TypeAlias

from support.power.harness import Kind, PowerStage, Record, Trace

Variant = Literal["least", "most", "torn", "hollow", "shuffled"]
VARIANTS: Final[tuple[Variant, ...]] = ("least", "most", "torn", "hollow", "shuffled")
HARSH: Final[tuple[Variant, ...]] = ("torn", "hollow", "shuffled")

_SECTORS: Final = (512, 4096)


@dataclass(eq=False)
class File:
    """The content of a file: what is safe, and what was done to it since."""

    base: Path | None = None  # where the content is kept that it began with, until it changes
    safe: bytearray = field(default_factory=bytearray)
    since: list[Record] = field(default_factory=list)

    def loaded(self) -> bytearray:
        """What is safe."""
        if self.base is not None:
            self.safe, self.base = bytearray(self.base.read_bytes()), None
        return self.safe

    def sync(self) -> None:
        """Everything is safe now."""
        if self.since:
            self.safe = self.latest()
            self.since.clear()

    def latest(self) -> bytearray:
        """The content as programs see it."""
        content = bytearray(self.loaded())
        for change in self.since:
            _apply(content, change)
        return content

    def hollow(self) -> bytearray:
        """As large as programs see it, with what is safe, and zeros where there is nothing."""
        content, size = bytearray(self.loaded()), len(self.latest())
        return content[:size].ljust(size, b"\0")

    def torn(self, chance: random.Random) -> bytearray:
        """Each sector as of some moment since the last sync, and the size too."""
        sector, number = chance.choice(_SECTORS), len(self.since)
        cuts: dict[int, int] = {}
        content, sizes = bytearray(self.loaded()), [len(self.safe)]
        for index, change in enumerate(self.since):
            size = _size_after(sizes[-1], change)
            sizes.append(size)
            content.extend(bytes(max(0, size - len(content))))
            begin, end = _span(change, len(content))
            for place in range(begin // sector, -(-end // sector)):
                if index < cuts.setdefault(place, chance.randint(0, number)):
                    low, high = max(begin, place * sector), min(end, (place + 1) * sector)
                    kept = change.data[low - begin : high - begin] if change.kind is Kind.WRITE else bytes(high - low)
                    content[low:high] = kept
        size = sizes[chance.randint(0, number)]
        return content[:size].ljust(size, b"\0")


@dataclass(eq=False)
class Directory:
    """The names in a directory: those that are safe, and those that programs see."""

    safe: dict[str, Node] = field(default_factory=dict)
    live: dict[str, Node] = field(default_factory=dict)


@dataclass(eq=False)
class Link:
    """A symbolic link."""

    target: str


Node: TypeAlias = File | Directory | Link
NameChange: TypeAlias = list[tuple[Directory, str, "Node | None"]]


class Disk:
    """The disk of a stage, at some moment of its trace."""

    def __init__(self, stage: PowerStage, *, journalled: bool = False) -> None:
        self._place = str(stage.disk)
        self._journalled = journalled
        self._nodes: dict[int, Node] = {}
        self._since: list[NameChange] = []  # changes of names that are not safe yet, in order
        self.root = self._taken(stage, stage.base)

    def _taken(self, stage: PowerStage, directory: Path) -> Directory:
        made = Directory()
        for path in directory.iterdir():
            node: Node
            if path.is_symlink():
                node = Link(str(path.readlink()))
            elif path.is_dir():
                node = self._taken(stage, path)
            else:
                node = File(base=path)
                self._nodes[stage.inodes[str(path.relative_to(stage.base))]] = node
            made.safe[path.name] = made.live[path.name] = node
        self._nodes[stage.inodes[str(directory.relative_to(stage.base))]] = made
        return made

    # The trace, record by record.

    def happen(self, record: Record) -> None:
        """Let one thing happen."""
        match record.kind:
            case Kind.WRITE | Kind.TRUNCATE | Kind.ALLOCATE:
                self._file(record.inode).since.append(record)
            case Kind.SYNC:
                self._sync(self._nodes[record.inode])
            case Kind.SYNC_ALL:
                for node in self._nodes.values():
                    self._sync(node)
            case Kind.CREATE | Kind.MKDIR | Kind.SYMLINK:
                made: Node = File() if record.kind is Kind.CREATE else Directory()
                if record.kind is Kind.SYMLINK:
                    made = Link(record.second)
                self._nodes[record.inode] = made
                self._rename((record.first, made))
            case Kind.LINK:
                self._rename((record.second, self._found(record.first)))
            case Kind.RENAME:
                self._rename((record.second, self._found(record.first)), (record.first, None))
            case Kind.UNLINK | Kind.RMDIR:
                self._rename((record.first, None))

    def _file(self, inode: int) -> File:
        node = self._nodes.get(inode)
        assert isinstance(node, File), f"inode {inode} was written, but its creation was not seen"
        return node

    def _sync(self, node: Node) -> None:
        if isinstance(node, File):
            node.sync()
        left = []
        for change in self._since:
            if self._journalled or any(directory is node for directory, _, _ in change):
                _rewrite(change, lambda directory: directory.safe)
            else:
                left.append(change)
        self._since = left

    def _rename(self, *changes: tuple[str, Node | None]) -> None:
        change = [(*self._holder(path), node) for path, node in changes]
        _rewrite(change, lambda directory: directory.live)
        self._since.append(change)

    def _holder(self, path: str) -> tuple[Directory, str]:
        directory = self.root
        *parents, name = PurePosixPath(path).relative_to(self._place).parts
        for part in parents:
            found = directory.live[part]
            assert isinstance(found, Directory), f"{path}: {part} is no directory"
            directory = found
        return directory, name

    def _found(self, path: str) -> Node:
        directory, name = self._holder(path)
        return directory.live[name]

    # What is left.

    def image(self, target: Path, variant: Variant, chance: random.Random) -> None:
        """Write what is there after the power failed now."""
        chosen = {"least": [], "shuffled": [each for each in self._since if chance.random() < 0.5]}.get(
            variant, self._since
        )
        names: dict[Directory, dict[str, Node]] = {}
        for change in chosen:
            _rewrite(change, lambda directory: names.setdefault(directory, dict(directory.safe)))
        self._lay(self.root, target, names, _CONTENT[variant], chance)

    def _lay(
        self,
        directory: Directory,
        target: Path,
        names: Mapping[Directory, Mapping[str, Node]],
        content: Callable[[File, random.Random], bytes | bytearray],
        chance: random.Random,
    ) -> None:
        target.mkdir(mode=0o700)
        for name, node in names.get(directory, directory.safe).items():
            place = target / name
            if isinstance(node, Directory):
                self._lay(node, place, names, content, chance)
            elif isinstance(node, Link):
                place.symlink_to(node.target)
            elif node.base is not None and not node.since:
                shutil.copyfile(node.base, place)
            else:
                place.write_bytes(content(node, chance))

    def differences(self, stage: PowerStage, unseen: Iterable[str] = ("*-shm",)) -> list[str]:
        """Where the files are not what the trace says: changes that the library has missed."""
        patterns = tuple(unseen)
        return [
            name
            for name in _compared(self.root, stage.disk, "")
            if not any(PurePosixPath(name).match(pattern) for pattern in patterns)
        ]


def crashes(
    stage: PowerStage, trace: Trace, moments: Mapping[int, Iterable[Variant]], seed: int, *, journalled: bool = False
) -> Iterator[tuple[int, Variant, Path]]:
    """The disks after crashes at some moments of a trace, each in some variants; each is deleted when it was looked at.

    Every disk is a pure function of the seed, the moment and the variant.
    """
    disk = Disk(stage, journalled=journalled)
    target = stage.directory / "image"
    for moment in range(len(trace) + 1):
        for variant in moments.get(moment, ()):
            disk.image(target, variant, random.Random(f"{seed} {moment} {variant}"))
            try:
                yield moment, variant, target
            finally:
                shutil.rmtree(target)
        if moment < len(trace):
            disk.happen(trace.records[moment])


def after(stage: PowerStage, trace: Trace) -> Disk:
    """The disk when everything had happened."""
    disk = Disk(stage)
    for record in trace.records:
        disk.happen(record)
    return disk


def _rewrite(change: NameChange, names: Callable[[Directory], dict[str, Node]]) -> None:
    for directory, name, node in change:
        if node is None:
            names(directory).pop(name, None)
        else:
            names(directory)[name] = node


def _apply(content: bytearray, change: Record) -> None:
    size = _size_after(len(content), change)
    del content[size:]
    content.extend(bytes(size - len(content)))
    if change.kind is Kind.WRITE:
        content[change.offset : change.offset + len(change.data)] = change.data


def _size_after(size: int, change: Record) -> int:
    match change.kind:
        case Kind.WRITE:
            return max(size, change.offset + len(change.data))
        case Kind.ALLOCATE:
            return max(size, change.offset)
        case _:
            return change.offset


def _span(change: Record, size: int) -> tuple[int, int]:
    """Which bytes a change writes. A truncation makes zeros of what is behind it, should that ever be seen again."""
    match change.kind:
        case Kind.WRITE:
            return change.offset, change.offset + len(change.data)
        case Kind.ALLOCATE:
            return 0, 0
        case _:
            return change.offset, max(change.offset, size)


def _compared(directory: Directory, path: Path, prefix: str) -> Iterator[str]:
    there = {each.name: each for each in path.iterdir()}
    yield from (prefix + name for name in there.keys() ^ directory.live.keys())
    for name in there.keys() & directory.live.keys():
        node = directory.live[name]
        if isinstance(node, Directory):
            yield from _compared(node, there[name], f"{prefix}{name}/")
        elif isinstance(node, File) and node.latest() != there[name].read_bytes():
            yield prefix + name


_CONTENT: Final[Mapping[Variant, Callable[[File, random.Random], bytes | bytearray]]] = {
    "least": lambda file, _: file.loaded(),
    "most": lambda file, _: file.latest(),
    "torn": File.torn,
    "hollow": lambda file, _: file.hollow(),
    "shuffled": File.torn,
}
