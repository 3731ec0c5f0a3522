"""Options that are looked for before the others can be read, such as --plugin FILE, --config FILE."""

import argparse
from collections.abc import Sequence


class OptionError(Exception):
    """What stands after an option cannot be used. No ValueError: tyro would frame its sentence."""


def split_option(
    arguments: Sequence[str], name: str, what: str = "file"
) -> tuple[list[str], list[str]]:
    """What an option names, in the form `NAME FILE` or `NAME=FILE`, and all other arguments.

    Raises:
        OptionError: nothing is named after it.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(name, action="append", default=[], dest="files")
    try:
        found, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise OptionError(f"{name} needs a {what}: name one after it.") from error
    return found.files, rest
