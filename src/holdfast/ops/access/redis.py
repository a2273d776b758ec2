"""Users of a Redis or Valkey server: one takes locks, one reads and breaks locks, one writes under guards.

The same users serve a cluster, on each node, and the primary of Sentinels, which have a user of their own.

Keys: those whose names begin with the lock prefix, and the store's own keys, each by its full name. Without a prefix,
only the locks of a plane. Only the operator's user reaches the audit stream. No user may list all keys, change the
server, or run a command that the scripts do not need.

Each line is a command (`holdfast access redis | redis-cli`). It resets the permissions of its user, but neither its
password nor whether it is enabled: a new user is disabled and has no password.
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
GREETING_COMMANDS: Final = (
    "+select +client|setname +ping +role +wait +asking +cluster|slots"  # Sentinel, ?wait_replicas=, and a cluster
)
SENTINEL_COMMANDS: Final = "+sentinel|get-master-addr-by-name +subscribe +client|setname +ping"
SWITCH_CHANNEL: Final = "+switch-master"

_KEPT: Final = ("fence", "slot-fence:*", "ears:*", "queue:*", "tickets:*")  # of a cluster, each slot has a counter
_AUDIT: Final = ("audit", "audit:*")


def redis_access(
    *,
    prefix: str = "",
    namespace: str = NAME,
    data: str | None = None,
    channel: str | None = None,
    name: str = NAME,
    keys: str = DEFAULT,
) -> AccessText:
    """The users. `prefix` and `namespace` as in the lease URL; `data` is the prefix of guarded keys.

    `channel` is the prefix of channels that guarded messages are published on. `keys` is the prefix of the plane's lock
    keys if `prefix` is empty.
    """
    check_account(name)
    check_label("--namespace", namespace)
    locks = [f"{_pattern('--prefix', prefix)}*"] if prefix else _of_the_plane(keys)
    kept = [f"{namespace}:{each}" for each in _KEPT]
    ears = [f"{namespace}:ear:*"]
    operators = f"{USER_COMMANDS} {OPERATOR_COMMANDS} {GREETING_COMMANDS}"
    users = {f"{name}-locks": "takes, renews and releases locks, and waits for them"}
    users[f"{name}-operator"] = "reads locks, breaks them, and reads the audit stream"
    lines = [
        _user(f"{name}-locks", [*locks, *kept], ears, f"{USER_COMMANDS} {GREETING_COMMANDS}"),
        _user(f"{name}-operator", [*locks, *kept, *(f"{namespace}:{each}" for each in _AUDIT)], ears, operators),
    ]
    if channel is not None and data is None:
        raise BadInput("--channel", "only applies to the user of guards", "give --data too")
    if data is not None:
        users[f"{name}-guards"] = f"writes keys that begin with {data} under guards"
        guarded = [f"{_pattern('--data', data)}*", f"{GUARDED}*"]
        channels = [] if channel is None else [f"{_pattern('--channel', channel)}*"]
        lines.append(_user(f"{name}-guards", guarded, channels, f"{GUARD_COMMANDS} {GREETING_COMMANDS}"))
    more = f"enable each user and set its password: ACL SETUSER {name}-locks on '>…'; then ACL SAVE"
    return AccessText("redis", users, "".join(f"{line}\n" for line in lines), more)


def sentinel_access(*, name: str = NAME) -> AccessText:
    """The user of the Sentinels, for each of them: it asks for the primary and hears of failovers."""
    user = f"{check_account(name)}-sentinel"
    text = f"ACL SETUSER {user} resetkeys resetchannels -@all &{SWITCH_CHANNEL} {SENTINEL_COMMANDS}\n"
    more = (
        f"at each Sentinel, enable it and set its password: ACL SETUSER {user} on '>…'; then url options "
        f"sentinel_username={user} and sentinel_password=…; the primary and its replicas need the other users"
    )
    return AccessText("sentinel", {user: "asks Sentinels for the primary, and listens for failovers"}, text, more)


def _of_the_plane(keys: str) -> list[str]:
    """Patterns of the plane's own locks: each key up to the job or run id."""
    found = {family.under(keys).pattern.partition("{") for family in FAMILIES.values()}
    return sorted(f"{glob_escaped(head)}{'*' if brace else ''}" for head, brace, _ in found)


def _pattern(option: str, text: str) -> str:
    if not text or not text.isprintable() or any(each.isspace() or each in "\"'" for each in text):
        raise BadInput(
            option, f"{text!r:.60} cannot be a prefix of names", "use printable text without spaces and quotes"
        )
    return glob_escaped(text)


def _user(name: str, keys: Sequence[str], channels: Sequence[str], commands: str) -> str:
    rights = [f"~{each}" for each in keys] + [f"&{each}" for each in channels]
    return f"ACL SETUSER {name} resetkeys resetchannels -@all {' '.join(rights)} {commands}"
