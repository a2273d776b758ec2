"""Read by every Python that finds this folder on its path: the tokens that it is given are written down, if wanted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if os.environ.get("TOKENS_FILE"):
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    from support.tokens import record

    record.begin()
