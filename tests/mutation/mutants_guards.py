"""Bugs in guards: what stands in front of the data and compares fences."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from holdfast.core.lease.fencing import Rule
from holdfast.guards.redis import scripts
from holdfast.guards.redis.scripts import GuardScript
from holdfast.guards.sql.statements import TableStatements
from mutation.detectors import GuardSentence, RedisGuardSentence
from mutation.mutant import MutantGroup

group = MutantGroup()
keep = group.keep


def rewrite(patch: pytest.MonkeyPatch, script: GuardScript, old: str, new: str) -> None:
    """Plant a bug in a Lua script, in memory."""
    assert old in script.body, f"{script.name}.lua has changed: {old}"
    body = script.body.replace(old, new)
    patch.setattr(script, "body", body)
    patch.setattr(script, "sha", hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest())


def rule(patch: pytest.MonkeyPatch, which: Rule, old: str, new: str) -> None:
    """Plant a bug in the condition under which statements of a guarded table write."""
    begin = TableStatements.__init__

    def bent(self: TableStatements, *args: Any) -> None:
        begin(self, *args)
        text = self._rules[which]
        assert old in text, f"the rule has changed: {text}"
        self._rules = {**self._rules, which: text.replace(old, new)}

    patch.setattr(TableStatements, "__init__", bent)


@keep(
    "many: the fence on the write only",
    where="guards/redis/lua/enter.lua",
    found_by=RedisGuardSentence("a lower write is refused after a higher enter", "a write after a higher enter"),
    attacks=("R34", "R47"),
)
def a_script_that_reads_without_registering(patch: pytest.MonkeyPatch) -> None:
    """The read leaves no trace, so a paused holder writes over what its successor has read: the lost update."""
    rewrite(patch, scripts.ENTER, "hash = true }) or register()", "hash = true })")


@keep(
    "many: fences compared as text",
    where="guards/redis/lua/judge.lua",
    found_by=RedisGuardSentence(
        "neighbouring fences are told apart over the whole range", "fence 10 was refused (9 seen)"
    ),
    attacks=("R28", "R34", "R47"),
)
def fences_compared_as_text(patch: pytest.MonkeyPatch) -> None:
    """The script compares digits as text, in which 9 comes after 10."""
    for script in (scripts.ENTER, scripts.SET, scripts.DELETE, scripts.SEEN):
        rewrite(
            patch, script, "  if #one ~= #other then", "  if true then\n    return one < other\n  end\n  if false then"
        )


@keep(
    "many: what is deleted is forgotten",
    where="guards/redis/lua/delete.lua",
    found_by=RedisGuardSentence("deleting leaves a memory", "value and fence after deleting"),
    attacks=("R34",),
)
def a_delete_that_takes_the_fence_with_it(patch: pytest.MonkeyPatch) -> None:
    """The fence goes with the data, and an older holder brings the data back."""
    rewrite(patch, scripts.DELETE, "redis.call('DEL', KEYS[2])", "redis.call('DEL', KEYS[2], KEYS[1])")


@keep(
    "many: strictly greater",
    where="guards/sql/statements.py",
    found_by=GuardSentence("the same fence writes as often as it likes", "nothing was changed"),
    attacks=("R58",),
)
def a_statement_that_wants_a_greater_fence(patch: pytest.MonkeyPatch) -> None:
    """The second write of the same holder is refused."""
    rule(patch, Rule.AT_LEAST, "<=", "<")


@keep(
    "many: a lease that was checked once is trusted to the end",
    where="guards/sql/statements.py",
    found_by=GuardSentence("a section ends when a newer holder enters", "a write in a section that is over"),
    attacks=("R47", "R58", "R69"),
)
def a_section_that_is_not_checked_again(patch: pytest.MonkeyPatch) -> None:
    """Writes of a section that was entered are not compared with the fence that stands there by then."""
    rule(patch, Rule.EXACTLY, " AND ", " OR ")
