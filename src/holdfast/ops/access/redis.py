"""Users of a Redis or Valkey server: one that takes locks, one that looks and breaks, one that writes under guards.

Which keys: those whose names begin with the prefix of the locks, and what the store keeps besides them, each by its own
name. Without a prefix, the locks of a plane and no others. Only the operator's user reaches the audit stream. No user
may ask for all keys, change the server or run another command than the scripts need.

A line is a command (`holdfast access redis | redis-cli`). It resets what its user may do, and neither its password nor
whether it is switched on: a new user is off and has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.core.name_prefixes import DEFAULT
from holdfast.errors import BadInput
from holdfast.guards.redis.fence_keys import PREFIX as GUARDED
from holdfast.ops.access import NAME, AccessText, check_account
from holdfast.plane.locks.registry import FAMILIES
from holdfast.stores.redis.lock_value import glob_escaped
from holdfast.stores.redis.protocol import OPERATOR_COMMANDS, USER_COMMANDS
from holdfast.types import check_label

GUARD_COMMANDS: Final = "+eval +evalsha +get +set +del +type +hset +hdel +hgetall +pexpire +publish"
GREETING_COMMANDS: Final = "+select +client|setname +ping"

_KEPT: Final = ("fence", "ears:*", "queue:*", "tickets:*")
_AUDIT: Final = "audit"


def redis_access(
    *,
    prefix: str = "",
    namespace: str = NAME,
    data: str | None = None,
    channel: str | None = None,
    name: str = NAME,
    keys: str = DEFAULT,
) -> AccessText:
    """The users. `prefix` and `namespace` as in the URL of the leases; `data` begins the names of guarded keys.

    `channel` begins the names of channels that guarded messages are published on. `keys` is what the keys of the plane
    begin with, where no prefix was named.
    """
    check_account(name)
    check_label("--namespace", namespace)
    locks = [f"{_pattern('--prefix', prefix)}*"] if prefix else _of_the_plane(keys)
    kept = [f"{namespace}:{each}" for each in _KEPT]
    ears = [f"{namespace}:ear:*"]
    operators = f"{USER_COMMANDS} {OPERATOR_COMMANDS} {GREETING_COMMANDS}"
    users = {f"{name}-locks": "takes, renews and releases locks, and waits for them"}
    users[f"{name}-operator"] = "looks at locks, breaks them, and reads who did"
    lines = [
        _user(f"{name}-locks", [*locks, *kept], ears, f"{USER_COMMANDS} {GREETING_COMMANDS}"),
        _user(f"{name}-operator", [*locks, *kept, f"{namespace}:{_AUDIT}"], ears, operators),
    ]
    if channel is not None and data is None:
        raise BadInput("--channel", "is for the user of guards", "give --data too")
    if data is not None:
        users[f"{name}-guards"] = f"writes keys that begin with {data} under guards"
        guarded = [f"{_pattern('--data', data)}*", f"{GUARDED}*"]
        channels = [] if channel is None else [f"{_pattern('--channel', channel)}*"]
        lines.append(_user(f"{name}-guards", guarded, channels, f"{GUARD_COMMANDS} {GREETING_COMMANDS}"))
    more = f"switch each on with a password of its own: ACL SETUSER {name}-locks on '>…'; then ACL SAVE"
    return AccessText("redis", users, "".join(f"{line}\n" for line in lines), more)


def _of_the_plane(keys: str) -> list[str]:
    """Patterns of the plane's own locks: the name up to where a job or a run is put in."""
    found = {family.under(keys).pattern.partition("{") for family in FAMILIES.values()}
    return sorted(f"{glob_escaped(head)}{'*' if brace else ''}" for head, brace, _ in found)


def _pattern(option: str, text: str) -> str:
    if not text or not text.isprintable() or any(each.isspace() or each in "\"'" for each in text):
        raise BadInput(option, f"{text!r:.60} cannot begin a name here", "use printable text without spaces and quotes")
    return glob_escaped(text)


def _user(name: str, keys: Sequence[str], channels: Sequence[str], commands: str) -> str:
    rights = [f"~{each}" for each in keys] + [f"&{each}" for each in channels]
    return f"ACL SETUSER {name} resetkeys resetchannels -@all {' '.join(rights)} {commands}"
