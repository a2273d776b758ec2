"""Processes of one host in different time namespaces read different start times of the very same process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.stores.sqlite import liveness

UNSHARE = ("unshare", "--time", "--boottime", "259200", "--fork", "--kill-child=SIGKILL")
HOLDER = """
import sys, holdfast
from holdfast.stores.sqlite.liveness import this_host
with holdfast.connect(sys.argv[1]) as locks, locks.lock("k", ttl=60):
    print(this_host().process, flush=True)
    sys.stdin.read()
"""


def _may() -> bool:
    found = shutil.which(UNSHARE[0])
    return found is not None and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _may(), reason="no time namespaces here: that needs root, and unshare of util-linux")
def test_a_live_holder_in_another_time_namespace_is_not_taken_for_dead(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    words = [*UNSHARE, sys.executable, "-c", HOLDER, url]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        told = holder.stdout.readline().strip()
        assert told
        host = liveness.this_host()
        started = liveness._stat(int(told.split("/")[1]))
        assert started is not None
        assert started[1] != told.split("/")[2], "here it has another start time than it says itself"
        assert not host.gone(told)
        with holdfast.connect(url) as locks:
            assert locks.lock("k").try_acquire() is None, "its lease is not given to another while it lives"
            holder.communicate("")
            with locks.lock("k"):
                pass
