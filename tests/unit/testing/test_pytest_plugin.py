"""The fixtures for users, in a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.source_tree import ROOT

TESTS = """
import sys
from holdfast.plane import App, Context

app = App("shop")

@app.job("double")
def double(n: int) -> int:
    return 2 * n

@app.job("show")
def show(n: int, *, ctx: Context) -> str:
    ctx.progress("half", 0.5)
    return ctx.topic

def test_locks(holdfast_locks):
    with holdfast_locks.lock("a"):
        assert holdfast_locks.inspect("a").held

def test_clock(holdfast_clock):
    with holdfast_clock.locks() as locks:
        lease = locks.lock("a", ttl=30).acquire()
        holdfast_clock.pause(60)
        assert lease.lost.is_set()

def test_context(holdfast_context):
    assert show(1, ctx=holdfast_context.blocking) == "test"

def test_plane(holdfast_plane):
    client = holdfast_plane(app)
    assert client.submit(double, n=21).result(timeout=30) == 42
"""


def _pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "holdfast.testing.pytest_plugin",
            "-p",
            "no:cacheprovider",
            *words,
        ],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # an installed package registers the plugin by its entry point
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_fixtures_work_in_a_suite_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS)
    done = _pytest(tmp_path, "test_shop.py")
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, holdfast.testing.pytest_plugin; "
        "print([each for each in sys.modules if each.startswith(('holdfast.plane', 'redis', 'psycopg', 'fastapi'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
