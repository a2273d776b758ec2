"""Small repositories of their own, in which pytest runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.source_tree import ROOT


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, with our own modules and no plugin that is not asked for."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GIT_"))},
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("src", "tests", "tools")),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)
