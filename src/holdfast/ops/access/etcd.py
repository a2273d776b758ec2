"""Roles of an etcd cluster: one takes locks, one also breaks locks and reads who did.

Each role reaches the keys under the prefix of the lease URL and no others. Only the operator's role reaches the records
of forced releases. Neither changes the cluster, its accounts or its history; etcd lets every user grant etcd leases.

Each line is a command for a shell. It makes a role only if there is none of that name. The text makes no users, because
etcd makes a user either with a password or unable to have one.
"""

from __future__ import annotations

from shlex import quote
from typing import Final

from holdfast.errors import BadInput
from holdfast.ops.access import NAME, AccessText, check_account
from holdfast.stores.etcd.lock_value import AUDIT, FENCE, LOCKS, TURNS, WAITERS
from holdfast.stores.etcd.url import PREFIX_MAX

_USED: Final = (LOCKS, TURNS, WAITERS)


def etcd_access(*, prefix: str = NAME, name: str = NAME) -> AccessText:
    """The roles. `prefix` is that of the lease URL."""
    check_account(name)
    if not prefix.strip("/") or not prefix.isprintable() or len(prefix) > PREFIX_MAX:
        raise BadInput("--prefix", f"{prefix!r:.60} is not a prefix of keys", "give the path of the lease URL")
    root = prefix.strip("/")
    locks, operator = f"{name}-locks", f"{name}-operator"
    lines: list[str] = []
    for role, folders in ((locks, _USED), (operator, (*_USED, AUDIT))):
        lines.append(f"etcdctl role get {role} >/dev/null 2>&1 || etcdctl role add {role}")
        lines += [_grant(role, f"{root}/{folder}", whole=True) for folder in folders]
        lines.append(_grant(role, f"{root}/{FENCE}", whole=False))
    accounts = {
        locks: "takes, renews and releases locks, and waits for them",
        operator: "also breaks locks, and reads who did",
    }
    user = f"etcdctl user add {locks}; etcdctl user grant-role {locks} {locks}"
    more = f"make a user with a password for each role: {user}; then etcdctl auth enable"
    return AccessText("etcd", accounts, "".join(f"{line}\n" for line in lines), more)


def _grant(role: str, key: str, *, whole: bool) -> str:
    return f"etcdctl role grant-permission {role}{' --prefix=true' if whole else ''} readwrite {quote(key)}"
