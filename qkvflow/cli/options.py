"""Options: paths; tables, as YAML has them; those read before others; those that a help shows.

--architecture.weights "{family: gated, gate: both}"
--architecture.parts attention "{part: ssm, state_size: 16}"
--optimizer.groups "{embedding: {rate: 0.3}}"
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from qkvflow.config import ConfigError, Gpt2Config, GroupConfig, OptimizerConfig
from qkvflow.config.strict import to_dict
from qkvflow.config.variants import ADAPTERS, FAMILIES, INTEGRATORS, PARTS, Variant
from qkvflow.config.yaml_files import read_yaml_text, yaml_text
from qkvflow.files import FileError, expanded

HELP_ALL = "--help-all"
Shown = Mapping[type, Sequence[str]]
"""Of dataclasses of options, the fields that a help shows; all, of one that is not there."""
_REFUSED: Shown = {Gpt2Config: ("vocab_size", "max_position_embeddings")}
"""Fields that a run or a model decides, so that no command takes them as options."""
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


def help_on(
    arguments: Sequence[str], often: Shown, rules: tyro.constructors.ConstructorRegistry
) -> tuple[list[str], str]:
    """The arguments as tyro knows them, and what to add to a help: it shows what is needed often.

    Nothing is hidden where no help is asked for: what is hidden is not read.
    """
    if not {"-h", "--help", HELP_ALL} & {*arguments}:
        return [*arguments], ""
    is_all = HELP_ALL in arguments or not often
    _hide(rules, {} if is_all else often)
    plain = ["--help" if argument == HELP_ALL else argument for argument in arguments]
    return plain, "" if is_all else f"\nThese are the most common options; {HELP_ALL} shows all."


def _hide(rules: tyro.constructors.ConstructorRegistry, shown: Shown) -> None:
    """Let a help show only what is named, and nothing that is always refused."""
    inside: set[Any] = set()

    @rules.struct_rule
    def of_dataclasses(
        info: tyro.constructors.StructTypeInfo,
    ) -> tyro.constructors.StructConstructorSpec | None:
        if info.type in inside or not dataclasses.is_dataclass(info.type):
            return None
        inside.add(info.type)  # what tyro itself makes of it is wanted below
        spec = tyro.constructors.ConstructorRegistry.get_struct_spec(info)
        inside.discard(info.type)
        assert isinstance(spec, tyro.constructors.StructConstructorSpec), "it is a dataclass"
        fields = [on_one_line(field) for field in spec.fields]
        fields = [field if is_shown(info.type, field.name) else hidden(field) for field in fields]
        return dataclasses.replace(spec, fields=tuple(fields))

    def on_one_line(field: Any) -> Any:
        """Lines of a source file are no lines of a help."""
        text = field.helptext() if callable(field.helptext) else field.helptext
        return dataclasses.replace(field, helptext=text and " ".join(text.split()))

    def is_shown(kind: type, name: str) -> bool:
        return name in shown.get(kind, [name]) and name not in _REFUSED.get(kind, ())

    def hidden(field: Any) -> Any:
        return dataclasses.replace(field, type=Annotated[field.type, tyro.conf.Suppress])


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
