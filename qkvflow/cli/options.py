"""What options can say: paths, tables as YAML has them; and options that are read before the others.

--architecture.weights "{family: gated, gate: both}"
--architecture.parts attention "{part: ssm, state_size: 16}"
--optimizer.groups "{embedding: {rate: 0.3}}"
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from qkvflow.config import ConfigError, GroupConfig, OptimizerConfig
from qkvflow.config.strict import to_dict
from qkvflow.config.variants import ADAPTERS, FAMILIES, INTEGRATORS, PARTS, Variant
from qkvflow.config.yaml_files import read_yaml_text, yaml_text
from qkvflow.files import FileError, expanded

_ALL = {variants.base: variants for variants in (FAMILIES, PARTS, INTEGRATORS, ADAPTERS)}


class OptionError(Exception):
    """What stands after an option cannot be used. No ValueError: tyro would frame its sentence."""


def registry() -> tyro.constructors.ConstructorRegistry:
    """What tyro has to know to read paths and tables."""
    rules = tyro.constructors.ConstructorRegistry()

    @rules.primitive_rule
    def of_paths_and_tables(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type is Path:
            return _spec(Path, "PATH", expanded, str)
        if info.type == dict[str, GroupConfig]:
            return _spec(dict, "{NAME: {rate: ...}, ...}", _groups, _table_of_groups)
        if (variants := _ALL.get(info.type)) is None:
            return None
        form = f"NAME|{{{variants.base.word}: NAME, ...}}"
        return _spec(variants.base, form, partial(_variant, variants), Variant.to_table)

    return rules


def _spec(
    kind: type, form: str, read: Callable[[str], Any], table_of: Callable[[Any], Any]
) -> tyro.constructors.PrimitiveConstructorSpec:
    def checked(words: list[str]) -> Any:
        try:
            return read(words[0])
        except (ConfigError, FileError) as error:
            raise OptionError(str(error)) from error

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=form,
        instance_from_str=checked,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [_written(table_of(value))],
    )


def _variant(variants: Any, text: str) -> Variant:
    return variants.read(read_yaml_text(text) if text.lstrip().startswith("{") else text)


def _groups(text: str) -> dict[str, GroupConfig]:
    return OptimizerConfig.from_dict({"groups": read_yaml_text(text)}).groups


def _table_of_groups(groups: dict[str, GroupConfig]) -> dict[str, Any]:
    return {name: to_dict(own) for name, own in groups.items()}


def _written(table: Any) -> str:
    """A table on one line; a name as it is."""
    if isinstance(table, str):
        return table
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
    return yaml_text(plain, default_flow_style=True, width=10_000).strip()


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
