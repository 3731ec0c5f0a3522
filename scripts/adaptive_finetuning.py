"""Pretrain, change the depth, adapt, in both directions: `qkvflow adaptation`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["adaptation"]
    sys.exit(main())
