"""Whether an attempt is still wanted: asked by a worker before it runs a message that is late or was delivered before.

Such a message may be a leftover, or a copy that a bus no longer knows as one: another worker has run the attempt
meanwhile, or the job has ended otherwise.
Promises: an attempt is called outdated only when the database says that its job has ended or is at a later attempt.
Does not promise the opposite: a result that the scheduler has not written yet is not seen here.
"""

from __future__ import annotations

from typing import Final

from holdfast.core.jobs import JobState
from holdfast.plane.jobrows import sql
from holdfast.plane.ports import Database

_GET: Final = sql("job_get")


class Attempts:
    """The attempts of one plane, as its database knows them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def current(self, job: str, attempt: int) -> bool:
        """Whether the attempt may still be run. A job that is not known may: nothing is lost by a second run."""
        rows = await self._database.read(lambda tx: tx.query(_GET, {"id": job}))
        return not rows or (not JobState(rows[0]["state"]).terminal and rows[0]["attempt"] <= attempt)
