"""A plane process for the upgrade fixtures: its settings, and a client of its HTTP API.

The code that writes the fixtures runs it with an old version of the package, the test with the present one. Therefore
it uses only what both have: `holdfast up`, settings and the HTTP API.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from support.servers.redis import free_port

LIMIT_S: Final = 30.0
TOKENS: Final = {"submitter": "token-of-the-submitter", "approver": "token-of-the-approver"}
ROLES: Final = {"submitter": '["admin"]', "approver": '["approver"]'}

SETTINGS: Final = """
[worker]
app = "upgrade_jobs:app"
count = 1
concurrency = 2
lease_ttl = 2.0
heartbeat = 0.5
[scheduler]
job_ttl = 5.0
[reconciler]
interval = 0.5
[replayer]
interval = 0.5
[runs]
interval = 0.5
[snapshot]
interval = 0.5
[limits]
replay = 1.0
[[approvals.rules]]
name = "payments"
topics = ["bank.*"]
message = "Check the amount."
"""


class Plane:
    """A running plane."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.base = f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str, body: Any = None, *, by: str = "submitter") -> Any:
        """Call the API; return the JSON of a successful answer."""
        answer = self._send(method, path, body, by)
        assert answer.status_code < 300, (answer.status_code, answer.text)
        return answer.json()

    def _send(self, method: str, path: str, body: Any = None, by: str = "submitter") -> httpx.Response:
        headers = {"authorization": f"Bearer {TOKENS[by]}"}
        return httpx.request(method, f"{self.base}/api/v1/{path}", json=body, headers=headers, timeout=LIMIT_S)

    def get(self, path: str) -> Any:
        """Read a resource."""
        return self.call("GET", path)

    def post(self, path: str, body: Any = None, *, by: str = "submitter") -> Any:
        """Create or change a resource."""
        return self.call("POST", path, body, by=by)

    def reaches(self, path: str, field: str, *values: Any) -> dict[str, Any]:
        """Wait until the resource has one of these values."""
        deadline = time.monotonic() + LIMIT_S
        found: dict[str, Any] = {}
        while time.monotonic() < deadline:
            answer = self._send("GET", path)
            found = answer.json()
            if answer.status_code == 200 and found[field] in values:
                return found
            time.sleep(0.05)
        raise AssertionError((path, values, found))


@contextmanager
def running(folder: Path, stores: Mapping[str, str], source: Path) -> Iterator[Plane]:
    """A plane on these stores, with the package in `source`. It is killed at the end: its leases stay held."""
    entries = [
        f'[[tokens]]\nname = "{name}"\ndigest = "{hashlib.sha256(token.encode()).hexdigest()}"\nroles = {ROLES[name]}\n'
        for name, token in TOKENS.items()
    ]
    (folder / "tokens.toml").write_text("".join(entries))
    (folder / "tokens.toml").chmod(0o600)
    config = folder / "holdfast.toml"
    lines = [f'{name} = "{url}"\n' for name, url in stores.items()]
    config.write_text("".join(lines) + SETTINGS + f'[api]\ntokens = "{folder / "tokens.toml"}"\n')
    port = free_port()
    words = ["-m", "holdfast", "up", "--no-audit", "--port", str(port), "--config", str(config)]
    paths = os.pathsep.join(map(str, (source, Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": paths, "GATE": str(folder / "gate")}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        plane = Plane(process, port)
        _wait_ready(plane, folder)
        yield plane
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _wait_ready(plane: Plane, folder: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while plane.process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{plane.base}/readyz", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise AssertionError((folder / "up.log").read_text())
