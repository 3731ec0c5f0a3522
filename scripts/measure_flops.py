"""What the models cost: `qkvflow flops`."""

import sys

from qkvflow.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["flops"]
    sys.exit(main())
