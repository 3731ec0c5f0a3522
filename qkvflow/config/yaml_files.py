"""Configurations in YAML: data only, strict, numbers as people write them."""

import re
from pathlib import Path
from typing import Any

import yaml

from qkvflow.config.history import moved_run
from qkvflow.config.run_config import RunConfig
from qkvflow.config.strict import ConfigError
from qkvflow.plugins import load_plugins


class _Loader(yaml.SafeLoader):
    """YAML without code, in which 3e-4 is a number and a name may not stand twice."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [loader.construct_object(key) for key, _ in node.value]
    for name in names:
        if names.count(name) > 1:
            raise yaml.constructor.ConstructorError(
                None, None, f"{name!r} stands there twice", node.start_mark
            )
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """The table that a YAML file holds.

    Raises:
        ConfigError: it cannot be read, or is no plain YAML, or no table.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read:", [f"{error.strerror or error}."]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no plain YAML:", [f"{error}"]) from error
    return read_yaml_text(text, str(path))


def read_yaml_text(text: str, source: str = "The text") -> dict[str, Any]:
    """The table that a YAML text holds."""
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{source} is no plain YAML:", [problem]) from error
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{source} is {kind}:", ["expected lines of the form name: value."])
    return content


def read_run(path: Path) -> RunConfig:
    """The run that a YAML file of the user describes; the plugins that it names are executed first.

    Raises:
        ConfigError: it cannot be read, is no plain YAML, or holds wrong fields; all are named.
        FileError: a plugin cannot be used.
    """
    load_named(read_yaml(path))
    return recorded_run(path)


def load_named(content: dict[str, Any]) -> None:
    """Execute the plugins of a YAML file of the user; anything but a list of files is refused later."""
    names = content.get("plugins")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        load_plugins(names)


def recorded_run(path: Path) -> RunConfig:
    """The run that a YAML file holds, as `read_run` has it, with nothing executed."""
    content = read_yaml(path)
    try:
        return RunConfig.from_dict(moved_run(content))
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used:", error.problems) from error


def write_run(run: RunConfig, path: Path) -> None:
    """Write a run as YAML, every field of it."""
    path.write_text(yaml.safe_dump(run.to_dict(), sort_keys=False), encoding="utf-8")
