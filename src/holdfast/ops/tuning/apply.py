"""Recommended values into the settings: which can be written, why others cannot, and the file as it would be then.

Nothing is written here that a plane would refuse: the new file is read as a plane reads it before it takes the place of
the old one.
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
class Plan:
    """What would be written, and what not."""

    path: Path
    before: str
    after: str
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)  # from, to
    left: list[str] = field(default_factory=list)  # sentences

    @property
    def difference(self) -> str:
        """As `diff -u` shows it."""
        return edit.difference(self.before, self.after, self.path.name)

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return {
            "file": str(self.path),
            "changes": {name: {"from": old, "to": new} for name, (old, new) in self.changes.items()},
            "left": self.left,
            "diff": self.difference,
        }


def plan(settings: Settings, reports: Iterable[FamilyReport]) -> Plan:
    """The settings with what is recommended. `BadInput` when a plane would not take them."""
    path = Path(settings.file or FILE)
    before = path.read_bytes().decode() if path.exists() else ""
    made = Plan(path, before, before)
    for report in reports:
        _consider(made, settings, report)
    made.after = edit.edited(before, {name: new for name, (_, new) in made.changes.items()})
    if made.changes:
        _check(made)
    return made


def apply(made: Plan) -> Path | None:
    """Write it. Returns where the old file was kept; None: there was none."""
    return edit.write(made.path, made.before, made.after)


def _consider(made: Plan, settings: Settings, report: FamilyReport) -> None:
    subject, found = report.subject, report.found
    name, ttl_ns = subject.family, found.ttl_ns
    if ttl_ns is None:
        if report.seen:
            made.left.append(f"{name}: left as it is, {found.refused}")
        return
    if subject.keys is None:
        made.left.append(f"{name}: there is no setting for it; give its times where the lock is described")
        return
    wanted = report.wanted
    if wanted and not found.possible:
        made.left.append(f"{name}: left as it is, because no TTL keeps the takeover SLO")
        return
    present = _in_effect(settings, subject.keys)
    fixed = {key: origin for key in wanted if (origin := settings.origin(key)).kind in {"environment", "flag"}}
    for key, value in wanted.items():
        if key in fixed and settings.value(key) != value:
            made.left.append(f"{name}: {key} is set by {fixed[key]}, which a file does not change")
            return
        if not takes(key, value):
            made.left.append(f"{name}: {key} does not take {value:g}")
            return
    made.changes |= {key: (present[key], value) for key, value in wanted.items() if key not in fixed}


def _in_effect(settings: Settings, keys: FamilyKeys) -> dict[str, float]:
    """What its settings amount to now; an interval that is not given is a third of the TTL."""
    ttl, every = settings.value(keys.ttl), settings.value(keys.renew_every)
    third = round(ttl * keys.factor / 3, 3)
    failures = settings.value(keys.failures)
    return {keys.ttl: ttl, keys.renew_every: third if every is None else every, keys.failures: failures}


def _check(made: Plan) -> None:
    """Read it as a plane would; what is wrong with it is the answer."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, made.path.name)
        copy.write_bytes(made.after.encode())
        try:
            load(copy, environment={})
        except BadSettings as error:
            problem = f"the settings would not work together: {error.problems[0].field}: {error.problems[0].problem}"
            raise BadInput("--apply", problem, f"change that first ({error.problems[0].fix})") from None
