"""Child jobs: jobs that a job function submits. Their identity, and the links from parents to children.

Promises: a child's id follows from its parent and a key, so every attempt of the parent submits the same child. The
parent is the job, or in a workflow run the step, whose attempts are jobs of their own. A link is stored before its
child, so a crash leaves at most a link without a job, which readers leave out.

Clock: none; callers pass the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.errors import BadInput
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import PARENT_LABEL, PARENT_MADE_LABEL, RUN_LABEL, STEP_LABEL
from holdfast.plane.model.records import ID_CHARS_MAX, check_id

KEY_CHARS_MAX: Final = 100
CHILDREN_SHOWN: Final = 1_000
CHILDREN_MAX: Final = 10_000
"""Of one parent."""

_LINK: Final = sql("child_link")
_LIST: Final = sql("child_list")


class JobParent(NamedTuple):
    """Whose children they are. `made_ns` tells jobs with the same id apart; 0: a step of a run."""

    id: str
    made_ns: int

    @classmethod
    def of(cls, job: str, made_ns: int, labels: Mapping[str, str]) -> JobParent:
        """A job as a parent."""
        run, step = labels.get(RUN_LABEL), labels.get(STEP_LABEL)
        return cls(f"{run}:{step}", 0) if run and step else cls(job, made_ns)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its children."""
        made = {PARENT_MADE_LABEL: str(self.made_ns)} if self.made_ns else {}
        return {PARENT_LABEL: self.id, **made}


class ChildLink(NamedTuple):
    """A child of a job."""

    id: str
    detached: bool
    state: JobState


def child_id(parent: JobParent, key: str) -> str:
    """The id of the child with this key, or `BadInput`."""
    if "/" in check_id("key", key) or len(key) > KEY_CHARS_MAX:
        raise BadInput("key", f"{key!r:.60} is not a key", f"give at most {KEY_CHARS_MAX} characters, without /")
    whole = f"{parent.id}/{key}"
    if len(whole) <= ID_CHARS_MAX:
        return whole
    return f"{whole[:150]}.{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


async def link_child(tx: Tx, parent: JobParent, child: str, *, detached: bool, at_ns: int) -> None:
    """Store the link to a child that is submitted next."""
    link = {"parent": parent.id, "made_ns": parent.made_ns, "child": child, "detached": int(detached), "at_ns": at_ns}
    await tx.query_many(_LINK, [link])


async def children_of(tx: Tx, parent: JobParent, most: int = CHILDREN_SHOWN) -> list[ChildLink]:
    """The children of a parent, oldest first."""
    rows = await tx.query(_LIST, {"parent": parent.id, "made_ns": parent.made_ns, "most": most})
    return [ChildLink(row["child"], bool(row["detached"]), JobState(row["state"])) for row in rows]
