"""One statement for many rows, as each engine does it best.

SQLite runs a statement once for each row without leaving the process. Postgres gets all rows in one statement, as a
JSON array: a statement for each of them costs the client more than the server. Both mean the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from holdfast.errors import RowMissing
from holdfast.plane.db import migrations
from holdfast.plane.db.ports import Tx

script = cache(migrations.script)


async def put_many(tx: Tx, name: str, rows: Sequence[Mapping[str, Any]], *, each: bool = False) -> None:
    """Put the statement of that name (in Postgres `<name>_many`) for each row; see `Tx.put`.

    `each`: every one of them has to change a row, or it is `RowMissing`, and nothing of the transaction is written.
    """
    if not rows:
        return
    if tx.dialect == "sqlite":
        changed = await tx.query_many(script(name, "sqlite"), rows)
        if each and changed != len(rows):
            raise RowMissing(f"{changed} rows were written where there should have been {len(rows)}")
        return
    text = json.dumps(rows, separators=(",", ":"))
    await tx.put(script(f"{name}_many", "postgres"), {"rows": text}, rows=len(rows) if each else None)
