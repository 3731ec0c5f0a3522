"""Variants on the command line: `--architecture.weights gated`, or a table as YAML has it.

--architecture.weights "{family: gated, gate: both}"
--architecture.parts attention "{part: ssm, state_size: 16}"
"""

from typing import Any

import tyro
import yaml

from qkvflow.config import ConfigError
from qkvflow.config.variants import ADAPTERS, FAMILIES, INTEGRATORS, PARTS, Variant
from qkvflow.config.yaml_files import read_yaml_text

_ALL = {variants.base: variants for variants in (FAMILIES, PARTS, INTEGRATORS, ADAPTERS)}


def registry() -> tyro.constructors.ConstructorRegistry:
    """What tyro has to know to read variants."""
    rules = tyro.constructors.ConstructorRegistry()

    @rules.primitive_rule
    def of_variants(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        return _spec(_ALL[info.type]) if info.type in _ALL else None

    return rules


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
        raise ValueError(" ".join(error.problems)) from error


def _written(variant: Variant) -> str:
    table = variant.to_table()
    if isinstance(table, str):
        return table
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10_000).strip()
