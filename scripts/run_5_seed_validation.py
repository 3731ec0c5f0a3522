"""Four models, five paired seeds, statistics: `qkvflow experiment run`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["experiment", "run"]
    sys.exit(main(script=sys.argv[0]))
