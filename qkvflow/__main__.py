"""`python -m qkvflow` is the command `qkvflow`."""

import sys

from qkvflow.cli.main import main

sys.exit(main())
