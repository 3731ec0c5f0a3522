"""What all commands around Levanter need."""

from importlib.util import find_spec

from qkvflow.config import ConfigError


def check_installed() -> None:
    """Say how to install Levanter where it is not.

    Raises:
        ConfigError: with the command.
    """
    if find_spec("levanter") is None:
        raise ConfigError(
            "Levanter is not installed:",
            ["pip install -r requirements-levanter.txt in a separate environment (docs/scaling.md)."],
        )
