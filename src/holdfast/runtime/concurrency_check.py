"""Refuses programs whose threads, sockets or tasks are not what leases need.

Promises: `connect` raises `Misconfigured` in a process whose `socket` or `thread` modules were replaced by gevent or
eventlet, and `holdfast.aio` raises it in a task of trio. The message names the fix.

The reasons: leases are renewed by a real thread, so that a program that is busy keeps them. A patched thread is a
greenlet, which does not run while another greenlet computes, and the lease is lost. Patched sockets ignore the time
limits that the kernel keeps for the Redis driver. And `holdfast.aio` awaits futures of asyncio, which trio cannot.

Does not promise to notice a program that is patched after it has connected.
"""

from __future__ import annotations

import sys

from holdfast.errors import Misconfigured

_PATCHERS = (  # who patches, the function that knows, and its names for what we need
    ("gevent", "gevent.monkey", "is_module_patched", ("socket", "threading")),
    ("eventlet", "eventlet.patcher", "is_monkey_patched", ("socket", "thread")),
)


def check_threads_are_real() -> None:
    """Raise `Misconfigured` if gevent or eventlet has replaced sockets or threads in this process."""
    for name, module, question, needed in _PATCHERS:
        is_patched = getattr(sys.modules.get(module), question, None)
        patched = [] if is_patched is None else [each for each in needed if is_patched(each)]
        if patched:
            raise Misconfigured(
                f"{name} has replaced {' and '.join(patched)} in this process, and Holdfast needs real ones: its time "
                f"limits and the thread that renews leases would not work. Do not patch them "
                f"(monkey.patch_all(socket=False, thread=False)), or use Holdfast in a process without {name}"
            )


def check_tasks_are_asyncio() -> None:
    """Raise `Misconfigured` in a task of trio."""
    lowlevel = sys.modules.get("trio.lowlevel")
    if lowlevel is None:
        return
    try:
        lowlevel.current_trio_token()
    except RuntimeError:
        return  # no trio here
    raise Misconfigured(
        "holdfast.aio needs asyncio, and this task runs under trio. With anyio, use its asyncio backend: "
        'anyio.run(main, backend="asyncio"). Under trio, use the blocking holdfast.connect() in '
        "trio.to_thread.run_sync()"
    )
