"""The workflows that an app declares, kept in the database when a process with that app starts.

Promises: each is kept for everybody, before the process takes its first job, so that whoever can run the steps of a
workflow knows it. The same definition again is the same version, however many processes start and how often.

Does not promise which is the newest while two releases of an app run side by side: it is that of the process which has
started last. Runs keep the version that they began with.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.flows.log import say
from holdfast.plane.app import App
from holdfast.plane.workflows.definitions import ALL_TENANTS, Definition, Definitions

_log: Final = logging.getLogger("holdfast.plane")


async def keep_workflows(definitions: Definitions, app: App) -> list[Definition]:
    """Keep what the app declares; the definitions, in the order of their names."""
    kept = []
    for _, workflow in sorted(app.workflows.items()):
        definition, new = await definitions.keep(workflow, scope=ALL_TENANTS, actor=f"app {app.name}")
        fields = {"workflow": workflow.name, "version": definition.workflow.version, "app": app.name}
        if new:
            say(_log, logging.INFO, "workflow has a new version", **fields)
        else:
            say(_log, logging.DEBUG, "workflow is as it was", **fields)
        kept.append(definition)
    return kept
