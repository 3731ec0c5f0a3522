"""Does time matter? `qkvflow experiment ablate`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["experiment", "ablate"]
    sys.exit(main(script=sys.argv[0]))
