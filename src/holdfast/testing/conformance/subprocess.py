"""The other process of the `shared` checks.

`python -m holdfast.testing.conformance.subprocess VERB WHERE KEY` prints JSON text.

WHERE is a Holdfast URL, or `module:function` that makes a blocking store. It asks once for KEY. VERB is `try` (a
granted lease is released) or `keep` (a detached lease, which is not released).
"""

from __future__ import annotations

import importlib
import json
import re
import secrets
import sys

from holdfast.core.ports import Store
from holdfast.runtime.run_sync import run_now
from holdfast.stores.registry import open_engine
from holdfast.types import NS, AcquireRequest, Busy

OWNER = "kit@elsewhere:1/1"
_FUNCTION = re.compile(r"[\w.]+:\w+")


def opened(where: str) -> Store:
    """Make the blocking store that WHERE means."""
    if not _FUNCTION.fullmatch(where):
        return open_engine(where).blocking
    module, _, function = where.partition(":")
    store: Store = getattr(importlib.import_module(module), function)()
    return store


async def asked(store: Store, key: str, keep: bool) -> str:
    """Ask once, and say what came of it."""
    ask = AcquireRequest(key, secrets.token_hex(16), OWNER, "kit.family", 60 * NS, detached=keep)
    answer = await store.acquire(ask, 5 * NS)
    if isinstance(answer, Busy):
        return f"busy {answer.owner}"
    if not keep:
        await store.release(key, ask.token, answer.claim, 0, 5 * NS)
    return f"granted {answer.fence}"


async def main(verb: str, where: str, key: str) -> str:
    """Open, ask, close."""
    store = opened(where)
    try:
        return await asked(store, key, keep=verb == "keep")
    finally:
        await store.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_now(main(*sys.argv[1:4]))))
