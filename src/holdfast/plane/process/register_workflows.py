"""Stores the workflows that an app declares when a process with that app starts.

Promises: they are stored for all tenants, before the process fetches its first job: a plane whose workers can run the
steps of a workflow knows the workflow. The same definition is the same version, however many processes start and how
often.

Does not promise which version is the newest while two releases of an app run side by side: it is that of the process
that started last. A run keeps the version that it began with.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.flows.log import log_event
from holdfast.plane.app import App
from holdfast.plane.workflows.definitions import ALL_TENANTS, Definition, Definitions

_log: Final = logging.getLogger("holdfast.plane")


async def keep_workflows(definitions: Definitions, app: App) -> list[Definition]:
    """Store the workflows of the app. Returns the definitions in the order of their names."""
    kept = []
    for _, workflow in sorted(app.workflows.items()):
        definition, new = await definitions.keep(workflow, scope=ALL_TENANTS, actor=f"app {app.name}")
        fields = {"workflow": workflow.name, "version": definition.workflow.version, "app": app.name}
        if new:
            log_event(_log, logging.INFO, "workflow has a new version", **fields)
        else:
            log_event(_log, logging.DEBUG, "workflow is as it was", **fields)
        kept.append(definition)
    return kept
