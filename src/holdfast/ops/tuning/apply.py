"""Writes recommended values into the settings: which can be written, why others cannot, and the resulting file.

Nothing is written that a plane would refuse: the new file is read as a plane reads it before it replaces the old one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.ops.tuning.report import FamilyReport
from holdfast.ops.tuning.subjects import takes
from holdfast.plane.settings import edit
from holdfast.plane.settings.lock_times import FamilyKeys
from holdfast.plane.settings.settings import FILE, Settings
from holdfast.plane.settings.sources import BadSettings, load


@dataclass(slots=True)
class SettingsEdit:
    """The changes to write, and those that are left out."""

    path: Path
    before: str
    after: str
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)  # from, to
    left: list[str] = field(default_factory=list)  # sentences

    @property
    def difference(self) -> str:
        """The changes as `diff -u` prints them."""
        return edit.difference(self.before, self.after, self.path.name)

    def as_dict(self) -> dict[str, object]:
        """JSON types."""
        return {
            "file": str(self.path),
            "changes": {name: {"from": old, "to": new} for name, (old, new) in self.changes.items()},
            "left": self.left,
            "diff": self.difference,
        }


def plan(settings: Settings, reports: Iterable[FamilyReport]) -> SettingsEdit:
    """The settings with the recommended values. Raise `BadInput` if a plane would refuse them."""
    path = Path(settings.file or FILE)
    before = path.read_bytes().decode() if path.exists() else ""
    made = SettingsEdit(path, before, before)
    for report in reports:
        _consider(made, settings, report)
    made.after = edit.edited(before, {name: new for name, (_, new) in made.changes.items()})
    if made.changes:
        _check(made)
    return made


def apply(made: SettingsEdit) -> Path | None:
    """Write the file. Returns the path of the backup; None: there was no old file."""
    return edit.write(made.path, made.before, made.after)


def _consider(made: SettingsEdit, settings: Settings, report: FamilyReport) -> None:
    subject, found = report.subject, report.found
    name, ttl_ns = subject.family, found.ttl_ns
    if ttl_ns is None:
        if report.seen:
            made.left.append(f"{name}: unchanged, {found.refused}")
        return
    if subject.keys is None:
        made.left.append(f"{name}: no setting exists for it; set its times in the lock spec")
        return
    wanted = report.wanted
    if wanted and not found.possible:
        made.left.append(f"{name}: unchanged, because no TTL keeps the takeover SLO")
        return
    present = _in_effect(settings, subject.keys)
    fixed = {key: origin for key in wanted if (origin := settings.origin(key)).kind in {"environment", "flag"}}
    for key, value in wanted.items():
        if key in fixed and settings.value(key) != value:
            made.left.append(f"{name}: {key} is set by {fixed[key]}, which the file cannot override")
            return
        if not takes(key, value):
            made.left.append(f"{name}: {key} does not accept {value:g}")
            return
    made.changes |= {key: (present[key], value) for key, value in wanted.items() if key not in fixed}


def _in_effect(settings: Settings, keys: FamilyKeys) -> dict[str, float]:
    """The values in effect; a missing interval is a third of the TTL."""
    ttl, every = settings.value(keys.ttl), settings.value(keys.renew_every)
    third = round(ttl * keys.factor / 3, 3)
    failures = settings.value(keys.failures)
    return {keys.ttl: ttl, keys.renew_every: third if every is None else every, keys.failures: failures}


def _check(made: SettingsEdit) -> None:
    """Read the new file as a plane would, and raise its first error."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, made.path.name)
        copy.write_bytes(made.after.encode())
        try:
            load(copy, environment={})
        except BadSettings as error:
            problem = f"the settings would not work together: {error.problems[0].field}: {error.problems[0].problem}"
            raise BadInput("--apply", problem, f"change that first ({error.problems[0].fix})") from None
