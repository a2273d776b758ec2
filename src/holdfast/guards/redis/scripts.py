"""The scripts of the Redis guard: each is one atomic step, called by its hash, sent whole where it is not known."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

_LUA = files("holdfast.guards.redis") / "lua"


def _read(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


_JUDGE: Final = _read("judge")


class GuardScript:
    """One Lua file, behind the rule that all of them begin with."""

    __slots__ = ("body", "name", "sha")

    def __init__(self, name: str) -> None:
        self.name = name
        self.body = _JUDGE + _read(name)
        self.sha = hashlib.sha1(self.body.encode(), usedforsecurity=False).hexdigest()


ENTER: Final = GuardScript("enter")
SET: Final = GuardScript("set")
HSET: Final = GuardScript("hset")
HDEL: Final = GuardScript("hdel")
DELETE: Final = GuardScript("delete")
PUBLISH: Final = GuardScript("publish")
NOTE: Final = GuardScript("note")
SEEN: Final = GuardScript("seen")
