"""Users of a NATS server: the plane that decides, the API that only submits, and the workers that only work.

All of them publish what they stage, for each relays what another left behind; so who may take which messages is what
is kept apart: the API takes none, workers take what is for workers and nothing of the schedulers. Nobody may empty,
change or delete the stream, or see another. They live in an account of their own, which no other user of the server
can hear.

The text is a part of the server's configuration (`include "holdfast-accounts.conf"`). Passwords come from the server's
environment, and without them it does not start.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Final

from holdfast.ops.access import NAME, AccessText, check_account, template
from holdfast.plane.bus.nats.naming import STREAM, NatsNames
from holdfast.plane.model.messages import GROUPS, WORKERS

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
        f"{name}-plane": "schedulers, engine and loops: every message",
        f"{name}-api": "submits, and takes no messages",
        f"{name}-worker": "takes what is for workers",
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


def _taking(stream: str, consumer: str, subjects: str) -> list[str]:
    """What takes messages as a consumer needs. The reply of a message has its domain in it on some servers."""
    return [
        f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{subjects}",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
        f"$JS.ACK.{stream}.{consumer}.>",
        f"$JS.ACK.*.*.{stream}.{consumer}.>",
    ]


def _listed(subjects: Sequence[str]) -> str:
    return "[\n" + "".join(f'            "{each}"\n' for each in subjects) + "          ]"
