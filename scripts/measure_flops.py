"""What the models cost: `qkvflow experiment cost`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["experiment", "cost"]
    sys.exit(main(script=sys.argv[0]))
