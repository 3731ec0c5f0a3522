"""Train every named model for a few steps and compare them: `qkvflow compare`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["compare"]
    sys.exit(main(script=sys.argv[0]))
