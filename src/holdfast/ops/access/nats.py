"""Users of a NATS server: the plane, the API that only submits, and the workers; or those of a lease bucket.

All users publish the messages that they stage, because each process relays outbox messages that another one left
behind. Consumption is separated: the API consumes nothing, and workers consume only messages for workers. No user may
purge, change or delete the stream, or see another stream. The users belong to a NATS account of their own, so no other
user of the server can subscribe to their messages.

The users of a lease bucket take locks, or also read the record of forced releases. Neither may purge, change or delete
the bucket, or see another stream. They have an account of their own too.

The text is a part of the server's configuration (`include "holdfast-accounts.conf"`). The server reads the passwords
from its environment and does not start without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Final

from holdfast.ops.access import NAME, AccessText, check_account, template
from holdfast.plane.bus.nats.naming import STREAM, NatsNames
from holdfast.plane.model.messages import GROUPS, WORKERS
from holdfast.stores.nats.bucket import BucketNames
from holdfast.stores.nats.url import DEFAULT_BUCKET, check_bucket

_INBOX: Final = "_INBOX.>"


def nats_access(*, stream: str = STREAM, name: str = NAME) -> AccessText:
    """The users of one plane's stream."""
    check_account(name)
    names = NatsNames(stream)
    decided = [
        names.durable(group, subject) for subject, groups in GROUPS.items() for group in groups if group != WORKERS
    ]
    says = [names.everything, f"$JS.API.STREAM.CREATE.{stream}", f"$JS.API.STREAM.INFO.{stream}"]
    accounts = {
        f"{name}-plane": "schedulers, engine and loops: consumes every message",
        f"{name}-api": "submits, and consumes no messages",
        f"{name}-worker": "consumes messages for workers",
    }
    words = {
        "account": stream,
        "name": name,
        "variable": f"{name}_nats".upper().replace("-", "_"),
        "plane_publish": _listed([*says, *_taking(stream, "*", f"{stream}.>")]),
        "api_publish": _listed(says),
        "worker_publish": _listed([*says, *_taking(stream, "*", f"{stream}.{WORKERS}.>")]),
        "worker_denied": _listed([each for durable in decided for each in _taking(stream, durable, ">")]),
        "inbox": _listed([_INBOX]),
    }
    variables = ", ".join(f"${words['variable']}_{each}" for each in ("PLANE", "API", "WORKER"))
    more = f"include it in the server's configuration, and set {variables} to passwords in its environment"
    return AccessText("nats", accounts, Template(template("accounts.conf")).substitute(words), more)


def lease_access(*, bucket: str = DEFAULT_BUCKET, name: str = NAME) -> AccessText:
    """The users of one lease bucket."""
    check_account(name)
    names = BucketNames(check_bucket("--bucket", bucket))
    locks = [
        f"{names.subjects}>",
        f"{names.audit_subjects}>",
        f"{names.hints}>",
        f"$JS.API.STREAM.CREATE.{names.stream}",
        f"$JS.API.STREAM.CREATE.{names.audit_stream}",
        f"$JS.API.STREAM.INFO.{names.stream}",
        f"$JS.API.STREAM.MSG.GET.{names.stream}",
    ]
    audit = [f"$JS.API.STREAM.INFO.{names.audit_stream}", f"$JS.API.STREAM.MSG.GET.{names.audit_stream}"]
    accounts = {
        f"{name}-locks": "takes, renews and releases locks, and waits for them",
        f"{name}-operator": "reads locks, breaks them, and reads the record of forced releases",
    }
    variable = f"{name}_nats".upper().replace("-", "_")
    words = {
        "account": names.stream,
        "name": name,
        "variable": variable,
        "locks_publish": _listed(locks),
        "operator_publish": _listed([*locks, *audit]),
        "subscribe": _listed([_INBOX, f"{names.hints}>"]),
    }
    more = (
        f"include it in the server's configuration, and set {variable}_LOCKS and {variable}_OPERATOR "
        "to passwords in its environment"
    )
    return AccessText("nats", accounts, Template(template("leases.conf")).substitute(words), more)


def _taking(stream: str, consumer: str, subjects: str) -> list[str]:
    """Subjects that a consumer needs to consume. On some servers the reply subject of a message contains its domain."""
    return [
        f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{subjects}",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
        f"$JS.ACK.{stream}.{consumer}.>",
        f"$JS.ACK.*.*.{stream}.{consumer}.>",
    ]


def _listed(subjects: Sequence[str]) -> str:
    return "[\n" + "".join(f'            "{each}"\n' for each in subjects) + "          ]"
