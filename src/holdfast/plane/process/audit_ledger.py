"""The audit ledger of one process of a plane, from the settings.

    with ExitStack() as stack:
        ledger = plane_ledger(settings)
        if ledger is not None:
            stack.enter_context(ledger)
        async with Plane(settings, audit=ledger): ...

The plane does not open it: the code that starts a process chooses its observers, and closes them after everything that
they observe. Any number of processes may use the same directory; each has files of its own there.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import BadInput
from holdfast.observe.ledger.writer import MIB, Ledger
from holdfast.plane.process.components import make_state_directory
from holdfast.plane.settings.sections import EVERYTHING
from holdfast.plane.settings.settings import Settings


def plane_ledger(settings: Settings) -> Ledger | None:
    """Open the ledger of the settings, or None if there is none. `BadInput`: its directory cannot be used."""
    chosen, path = settings.audit, settings.audit_path
    if path is None:
        return None
    if settings.database is None:
        make_state_directory()
    elif chosen.path is None and not Path(path).parent.is_dir():
        return None  # the database beside it has no directory either, and reports that error
    try:
        return Ledger(
            path,
            everything=chosen.records == EVERYTHING,
            file_bytes=chosen.file_size * MIB,
            file_age=chosen.file_age,
            keep_bytes=chosen.keep_size * MIB,
            keep_age=chosen.keep_age,
            sync=chosen.sync,
        )
    except BadInput as error:
        where = f"audit.path ({settings.origin('audit.path')})"
        raise BadInput(where, error.problem, "name another directory with --audit, or do without: --no-audit") from None
