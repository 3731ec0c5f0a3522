"""Options that are looked for before the others can be read: --plugin FILE, --config FILE."""

import argparse
from collections.abc import Sequence

from qkvflow.files import FileError


def split_option(arguments: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """The files that an option names, in the form `NAME FILE` or `NAME=FILE`, and all other arguments.

    Raises:
        FileError: no file is named after it.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(name, action="append", default=[], dest="files")
    try:
        found, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise FileError(f"{name} needs a file: name one after it.") from error
    return found.files, rest
