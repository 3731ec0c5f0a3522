"""What can be installed beside what is always needed: the line for pip, in a clone or elsewhere."""

import importlib.metadata
import re
from pathlib import Path

_CLONE = Path(__file__).parents[1]


def pip_line(extra: str) -> str:
    """What installs an extra: in a clone the clone with it, elsewhere the packages that it names.

    qkvflow itself is not to be had by its name.
    """
    if (_CLONE / "pyproject.toml").is_file():
        place = "." if Path.cwd() == _CLONE else str(_CLONE)
        return f'pip install -e "{place}[{extra}]"'
    named = (line.partition(";") for line in importlib.metadata.requires("qkvflow") or ())
    is_of_it = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    needed = [f'"{package.strip()}"' for package, _, when in named if is_of_it.search(when)]
    return " ".join(["pip install", *needed])
