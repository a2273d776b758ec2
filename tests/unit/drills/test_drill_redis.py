"""Whether drills can play on a Redis of their own here, said before anything is started."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_DRIVER = """
import sys
sys.modules["hiredis"] = None
from holdfast.drills.env.redis_server import redis_server
redis_server()
"""


def test_a_server_without_a_driver_is_refused_with_the_extra_to_install() -> None:
    told = subprocess.run([sys.executable, "-c", WITHOUT_DRIVER], capture_output=True, text=True, check=False)
    assert told.stderr.strip().endswith('that is not installed (hiredis): pip install "holdfast[redis]"')
