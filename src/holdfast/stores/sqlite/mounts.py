"""On what kind of file system a file lies, as far as the kernel reports it.

Promises: `is_shared` is True for file systems that several machines are known to reach. Does not promise to
know them all; where the kernel reports nothing (no `/proc`), nothing is known.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.types import Guarantee

MOUNTS: Final = "/proc/self/mountinfo"
# fmt: off
SHARED_TYPES: Final = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
))
# fmt: on


def is_shared(path: str, mountinfo: str = MOUNTS) -> bool:
    """Whether other machines may reach the same file."""
    return file_system(path, mountinfo) in SHARED_TYPES


def file_system_finding(path: str, mountinfo: str = MOUNTS) -> StoreFinding:
    """What the file system means for leases."""
    kind = file_system(path, mountinfo) or "unknown"
    if kind not in SHARED_TYPES:
        return StoreFinding("file_system", Severity.OK, kind)
    return StoreFinding(
        "file_system",
        Severity.CRITICAL,
        f"{kind}, which several machines can reach",
        "the locks of a network file system do not exclude: two machines may write the file at the same time",
        "move the file to a local disk, or use a store for several hosts",
        Guarantee.EFFICIENCY_ONLY,
    )


def file_system(path: str, mountinfo: str = MOUNTS) -> str:
    """Name the type of file system that a path is on, as the kernel calls it; '' when it does not say."""
    try:
        lines = Path(mountinfo).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        mount, _, device = line.partition(" - ")
        fields = mount.split()
        if len(fields) < 5 or not device:
            continue
        point = _unescaped(fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # a later mount on the same point covers the earlier one
            best, kind = point, device.split()[0]
    return kind


def _unescaped(text: str) -> str:
    """Undo the octal escapes of mountinfo: space, tab, newline and backslash."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
