"""The settings of names: what the keys of locks and the names of metrics begin with.

An operator of an older fleet keeps its spelling with them: `acme:scheduler:job:42`, `acme_job_lock_wait`. What
belongs to the stores and not to the plane keeps its name: tables, streams, and what Redis keeps besides the locks.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.name_prefixes import DEFAULT, Names, check_key_prefix, check_metric_prefix
from holdfast.plane.setting_keys import key
from holdfast.plane.setting_kinds import Word


@dataclass(frozen=True, slots=True)
class NameSettings:
    """What the keys of locks and the names of metrics begin with."""

    keys: str = key(
        DEFAULT,
        Word("acme", check_key_prefix),
        "before the first colon of the keys of locks; one for all processes of a plane: holdfast up --switch-keys",
    )
    metrics: str = key(
        DEFAULT,
        Word("acme", check_metric_prefix),
        "before the first underscore of metrics, and of what asks for them: alert rules, dashboard, runbooks, tune",
    )

    @property
    def words(self) -> Names:
        """As they are used."""
        return Names(self.keys, self.metrics)
