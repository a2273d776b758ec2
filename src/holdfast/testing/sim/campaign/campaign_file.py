"""A campaign: a long run of simulated worlds that can be stopped at any moment, and continues where it was.

Its file says what is being lived through, by which code, how far it has come, and what was found. It is written whole
or not at all, every few seconds, so a kill costs the last few seconds. Worlds are counted in the order of their
seeds: all below `next` are in the totals, and none above. What another code or another Python found does not add up
with this one's, so a campaign of theirs is not gone on with, unless one insists.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import BadInput
from holdfast.testing.sim.campaign.totals import Totals

FORMAT = 1
GIT_PATIENCE_S = 10
_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Maker:
    """Whose worlds they are: equal makers make equal worlds of equal seeds."""

    version: str
    commit: str  # with `-dirty` behind it when files differ from it; empty where the code is in no repository
    python: str  # the minor version: replay is exact on the same one

    def __str__(self) -> str:
        return f"holdfast {self.version}{f' at {self.commit}' if self.commit else ''} on Python {self.python}"


def this_maker() -> Maker:
    """The code and the interpreter that are running."""
    return Maker(holdfast.__version__, _commit(), ".".join(platform.python_version_tuple()[:2]))


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    asked = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command, found on the PATH
            asked, capture_output=True, text=True, timeout=GIT_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(slots=True)
class Campaign:
    """What is known of it. `profile` may be a mix; `first` is the seed that it began with."""

    profile: str
    first: int
    makers: list[Maker]
    next: int
    seconds: float = 0.0  # of real time, over all the times that it ran
    totals: Totals = field(default_factory=Totals)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "holdfast_campaign": FORMAT,
            "profile": self.profile,
            "first": self.first,
            "next": self.next,
            "made_by": [
                {"version": maker.version, "commit": maker.commit, "python": maker.python} for maker in self.makers
            ],
            "seconds": round(self.seconds, 3),
            **self.totals.to_json(),
        }

    def save(self, path: Path) -> None:
        """Write it beside the file, to the disk, and then under its name."""
        place = path.resolve()  # a link stays a link
        try:
            _replace(place, (json.dumps(self.to_json(), indent=2) + "\n").encode())
        except OSError as error:
            raise BadInput(
                "--campaign", f"{path} cannot be written: {error.strerror}", "check its folder and its rights"
            ) from None


def open_campaign(path: Path, profile: str, first: int, maker: Maker, *, anyway: bool = False) -> Campaign:
    """The campaign of this file: gone on with, or begun. `anyway`: also when another code has begun it."""
    if path.exists() and not path.is_file():
        raise BadInput("--campaign", f"{path} is no file", "name a file, or one that does not exist yet")
    if not path.exists():
        campaign = Campaign(profile, first, [maker], first)
        campaign.save(path)  # now, and not after the first hour, is the time to learn that it cannot be written
        return campaign
    campaign = _read(path)
    if (campaign.profile, campaign.first) != (profile, first):
        raise BadInput(
            "--campaign",
            f"{path} is of {campaign.profile} worlds from seed {campaign.first} on, not of {profile} ones from {first}",
            "go on with it as it was begun, or name another file",
        )
    if campaign.makers[-1] != maker:
        if not anyway:
            raise BadInput(
                "--campaign",
                f"{path} was made by {campaign.makers[-1]}, and this is {maker}",
                "name another file, or say --anyway to add up what does not quite belong together",
            )
        campaign.makers.append(maker)
    return campaign


def _read(path: Path) -> Campaign:
    fix = "name another file, or remove this one"
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput("--campaign", f"{path} cannot be read: {error.strerror}", "check its rights") from None
    except ValueError:
        raise BadInput("--campaign", f"{path} is no campaign: it is not JSON", fix) from None
    if not isinstance(read, Mapping) or "holdfast_campaign" not in read:
        raise BadInput("--campaign", f"{path} is no campaign", fix)
    if read["holdfast_campaign"] != FORMAT:
        raise BadInput("--campaign", f"{path} has the format {read['holdfast_campaign']!r}, not {FORMAT}", fix)
    try:
        makers = [Maker(str(each["version"]), str(each["commit"]), str(each["python"])) for each in read["made_by"]]
        campaign = Campaign(
            profile=str(read["profile"]),
            first=int(read["first"]),
            makers=makers,
            next=int(read["next"]),
            seconds=float(read["seconds"]),
            totals=Totals.from_json(read),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput("--campaign", f"{path} is damaged: {error!r}", fix) from None
    if not makers or campaign.next - campaign.first != campaign.totals.worlds.total():
        raise BadInput("--campaign", f"{path} is damaged: its numbers do not fit each other", fix)
    return campaign


def _replace(place: Path, data: bytes) -> None:
    number, draft = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(number, place.stat().st_mode & 0o7777 if place.exists() else _MODE)
            file.write(data)
            file.flush()
            os.fsync(number)
        Path(draft).replace(place)
    except BaseException:
        Path(draft).unlink()
        raise
