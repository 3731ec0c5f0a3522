"""Four models, five paired seeds, statistics: `qkvflow validate`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["validate"]
    sys.exit(main())
