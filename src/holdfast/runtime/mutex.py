"""A mutex that a signal handler may enter again.

A signal handler runs in the middle of whatever the main thread is doing, perhaps inside a mutex. A handler that calls
`lease.release()` would wait for that mutex forever if it could not be entered twice. So every mutex that a call on a
lease or a `Locks` can reach is one of these, and what it protects must be valid between any two steps.

Take it with `with` and nothing else: its `__exit__` is not written in Python, so a handler that raises cannot skip it.
The `with` of a `threading.Condition` or the `set` of a `threading.Event` can be skipped: use `with` on the mutex of the
condition, and `runtime.wakeup` instead of an event.
"""

from __future__ import annotations

from threading import RLock as Mutex

__all__ = ["Mutex"]
