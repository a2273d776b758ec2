"""`python benchmarks` and `python -m benchmarks` do what `python -m benchmarks.run` does."""

import sys
from pathlib import Path

if not __package__:  # started by its path: the package is found from the folder above
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.run import main

if __name__ == "__main__":
    sys.exit(main())
