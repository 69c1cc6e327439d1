"""``python -m map_metrics``: the command line."""

import sys

from map_metrics.cli import main

if __name__ == "__main__":
    sys.exit(main())
