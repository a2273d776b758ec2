"""Files of the working directory that were imported in place of a library.

A `click.py` next to the user's own scripts breaks every import of click. The error then comes from deep inside a
library; the user needs the name of the file.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path


def shadowing_file(error: BaseException) -> Path | None:
    """The file of the working directory that caused an error by hiding a library of the same name."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    rest = [each for each in sys.path if each and Path(each) != here]
    for path in _files(error):
        package = path.name == "__init__.py"
        name = path.parent.name if package else path.stem
        place = path.parent.parent if package else path.parent
        hides = name in sys.stdlib_module_names or PathFinder.find_spec(name, rest) is not None
        if place == here and name != "__main__" and hides:
            return path
    return None


def _files(error: BaseException) -> Iterator[Path]:
    """Files that an error names or came through, and those of loaded modules."""
    if isinstance(error, ImportError) and error.path:
        yield Path(error.path)
    yield from (Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__))
    loaded = [getattr(module, "__file__", None) for name, module in sorted(sys.modules.items()) if "." not in name]
    yield from (Path(file) for file in loaded if file)
