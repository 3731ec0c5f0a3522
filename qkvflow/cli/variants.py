"""Tables on the command line, as YAML has them: variants, and groups of arrays.

--architecture.weights "{family: gated, gate: both}"
--architecture.parts attention "{part: ssm, state_size: 16}"
--optimizer.groups "{embedding: {rate: 0.3}}"
"""

from typing import Any

import tyro

from qkvflow.cli.options import OptionError
from qkvflow.config import ConfigError, GroupConfig, OptimizerConfig
from qkvflow.config.strict import to_dict
from qkvflow.config.variants import ADAPTERS, FAMILIES, INTEGRATORS, PARTS, Variant
from qkvflow.config.yaml_files import read_yaml_text, yaml_text

_ALL = {variants.base: variants for variants in (FAMILIES, PARTS, INTEGRATORS, ADAPTERS)}


def registry() -> tyro.constructors.ConstructorRegistry:
    """What tyro has to know to read variants."""
    rules = tyro.constructors.ConstructorRegistry()

    @rules.primitive_rule
    def of_variants(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type == dict[str, GroupConfig]:
            return _GROUPS
        return _spec(_ALL[info.type]) if info.type in _ALL else None

    return rules


def _read_groups(text: str) -> dict[str, GroupConfig]:
    try:
        return OptimizerConfig.from_dict(
            {"groups": read_yaml_text(text) if text != "{}" else {}}
        ).groups
    except ConfigError as error:
        raise OptionError(str(error)) from error


_GROUPS = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="{NAME: {rate: ...}, ...}",
    instance_from_str=lambda words: _read_groups(words[0]),
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [_flow({name: to_dict(own) for name, own in value.items()})],
)


def _spec(variants: Any) -> tyro.constructors.PrimitiveConstructorSpec:
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"NAME|{{{variants.base.word}: NAME, ...}}",
        instance_from_str=lambda words: _read(variants, words[0]),
        is_instance=lambda value: isinstance(value, variants.base),
        str_from_instance=lambda value: [_written(value)],
    )


def _read(variants: Any, text: str) -> Variant:
    try:
        return variants.read(read_yaml_text(text) if text.lstrip().startswith("{") else text)
    except ConfigError as error:
        raise OptionError(str(error)) from error


def _written(variant: Variant) -> str:
    table = variant.to_table()
    if isinstance(table, str):
        return table
    return _flow(
        {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
    )


def _flow(table: dict[str, Any]) -> str:
    """A table on one line."""
    return yaml_text(table, default_flow_style=True, width=10_000).strip()
