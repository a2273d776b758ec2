"""`python -m holdfast` is the `holdfast` command."""

import sys
from pathlib import Path

# Python puts the working directory first. Behind the libraries, a file in it cannot take the place of one of them.
if not sys.flags.safe_path and sys.path and Path(sys.path[0]) == Path.cwd():
    sys.path.append(sys.path.pop(0))

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
