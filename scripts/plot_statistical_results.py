"""The figures and the table of an experiment: `qkvflow figures`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["figures"]
    sys.exit(main())
