"""Secrets are drawn in batches, and each is used once: among threads, and on both sides of a fork."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from holdfast.runtime.system import SystemEntropy

FORK = """
import os
from holdfast.runtime.system import SystemEntropy

entropy = SystemEntropy()
entropy.token()  # from here on there are some in store
reads, writes = os.pipe()
if os.fork() == 0:
    os.write(writes, " ".join(entropy.token() for _ in range(200)).encode())
    os._exit(0)
os.close(writes)
with os.fdopen(reads) as pipe:
    theirs = pipe.read().split()
os.wait()
print(len(theirs), len({*theirs, *(entropy.token() for _ in range(200))}))
"""


@pytest.mark.threat("X1")
def test_threads_never_share_a_token() -> None:
    entropy, found = SystemEntropy(), [list[str]() for _ in range(4)]
    threads = [threading.Thread(target=lambda to=to: to.extend(entropy.token() for _ in range(1000))) for to in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tokens = [token for each in found for token in each]
    assert len(set(tokens)) == len(tokens) == 4000
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)


@pytest.mark.threat("X1")
def test_a_fork_does_not_repeat_the_tokens_that_were_in_store() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["200", "400"]
