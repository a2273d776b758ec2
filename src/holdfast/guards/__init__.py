"""Guards: storage that refuses a stale writer.

A fence that is not checked protects nothing. Each guard checks it where the data is written, in the same step as the
write, and registers it before the first read, so that neither a late write nor a write made from a stale read can take
effect:

    from holdfast.guards.sqlite import GuardedTable      # sqlite3
    from holdfast.guards.postgres import GuardedTable    # psycopg 3
    from holdfast.guards.sqlalchemy import GuardedTable  # SQLAlchemy 2, Core and ORM
    from holdfast.guards.redis import GuardedKeys        # redis-py
    from holdfast.guards.files import GuardedFiles       # atomic replacement in a folder
    from holdfast.guards.http import FenceMiddleware     # ASGI; `httpx` and `requests` for clients
    from holdfast.guards.messages import Inbox, Outbox   # any bus

`holdfast.guards.aio` has the awaited ones. `holdfast.guards.conformance` proves a guard, also your own.
"""

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.bearer import Bearer, CarriedFence, Fenced, carried

__all__ = ["FENCE_MAX", "Bearer", "CarriedFence", "Fenced", "GuardStatistics", "carried"]
