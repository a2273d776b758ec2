"""`python -m holdfast` is the `holdfast` command."""

import os
import sys
from contextlib import suppress

# Python puts the working directory first. Behind the libraries, a file in it cannot take the place of one of them.
with suppress(OSError):  # a directory that is gone contains no file
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib takes long to load
        sys.path.append(sys.path.pop(0))

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
