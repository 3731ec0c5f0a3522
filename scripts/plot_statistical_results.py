"""Figures and table of an experiment for print: `qkvflow experiment report --figures`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["experiment", "report", "--figures", "publication_figures"]
    sys.exit(main(script=sys.argv[0]))
