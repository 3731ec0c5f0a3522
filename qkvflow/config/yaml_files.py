"""Configurations in YAML: data only, strict, numbers as people write them."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from qkvflow.config.history import moved_run
from qkvflow.config.run_config import RunConfig
from qkvflow.config.strict import ConfigError, nearest
from qkvflow.plugins import load_plugins

RECIPES = Path(__file__).parent / "recipes"
"""How models are trained: settings that belong together, by the name of a file."""
DEFAULT_RECIPE = "modern"
"""What `qkvflow train` begins with where no config file is given."""
LARGEST = 200_000
"""Characters of a text that is read; the longest plan of the package has a twentieth."""
DEEPEST = 50
"""Tables and lists within each other."""
LONGEST_NUMBER = 100
"""Characters of a number."""
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """YAML without code, aliases, tags and dates, in which a name may not stand twice."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(f"*{event.anchor} is an alias; write out what it stands for", event)
        if getattr(event, "tag", None) is not None:
            raise _refusal(f"{event.tag} is a tag; leave it out", event)
        if self.depth == DEEPEST:
            raise _refusal(f"tables or lists are nested more than {DEEPEST} deep", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def number(self, node: yaml.ScalarNode) -> int | float:
        """A number as YAML has it, short enough to be one that somebody means."""
        short = len(node.value) <= LONGEST_NUMBER
        kind = "int" if node.tag.endswith("int") else "float"
        try:
            read = getattr(self, f"construct_yaml_{kind}")(node) if short else None
        except (ValueError, OverflowError):
            read = None
        if read is None:
            raise _refusal(f"{node.value[:LONGEST_NUMBER]!r} is not a usable {kind}", node)
        return read


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads: never an alias, quotes around what would be a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _refusal(problem: str, place: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, place.start_mark)


for _kind in (_Loader, _Dumper):  # so that 3e-4 is a number
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in rules if tag != _TIMESTAMP]
    for first, rules in _Loader.yaml_implicit_resolvers.items()
}


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    content = loader.construct_mapping(node, deep=True)
    if len(content) < len(node.value):
        names = Counter(loader.construct_object(key) for key, _ in node.value)
        raise _refusal(f"{names.most_common(1)[0][0]!r} is given twice", node)
    return content


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
for _kind_of_number in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind_of_number}", _Loader.number)


def read_yaml(path: Path) -> dict[str, Any]:
    """The table that a YAML file holds.

    Raises:
        ConfigError: it cannot be read, or is not plain YAML, or no table.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        problem = f"{error.strerror or error}. Name a YAML file{_instead(path)}."
        raise ConfigError(f"{path} cannot be read:", [problem]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not plain YAML:", [f"{error}"]) from error
    return read_yaml_text(text, str(path))


def _instead(path: Path) -> str:
    """The YAML file of a directory of a run or an experiment that was named in its place."""
    kept = (path / name for name in ("run.yaml", "plan.yaml"))
    return next((f", such as {file}" for file in kept if file.is_file()), "")


def read_yaml_text(text: str, source: str = "The text") -> dict[str, Any]:
    """The table that a YAML text holds."""
    if len(text) > LARGEST:
        problem = f"it has more than {LARGEST:,} characters; is this the file you meant?"
        raise ConfigError(f"{source} is not plain YAML:", [problem])
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{source} is not plain YAML:", [problem]) from error
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
        return RunConfig.from_dict(_with_recipe(content))
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used:", error.problems) from error


def _with_recipe(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a file in today's layout, put on those of the recipe that it names, if it does."""
    own = moved_run({name: value for name, value in content.items() if name != "recipe"})
    return merged(read_recipe(content["recipe"]), own) if "recipe" in content else own


def read_recipe(name: str = DEFAULT_RECIPE) -> dict[str, Any]:
    """The fields of a run that a recipe sets, as tables.

    Examples:
        >>> read_recipe("modern")["optimizer"]["name"]
        'muon'
    """
    known = {file.stem: file for file in RECIPES.glob("*.yaml")}
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            "There is no such recipe:", [f"recipe is {name!r}. {nearest(str(name), known)}"]
        )
    return read_yaml(known[name])


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables, with the changes put in."""
    result = dict(base)
    for name, value in changes.items():
        inner = result.get(name)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            value = merged(inner, value)
        result[name] = value
    return result


def write_run(run: RunConfig, path: Path) -> None:
    """Write a run as YAML, every field of it."""
    path.write_text(yaml_text(run.to_dict()), encoding="utf-8")


def yaml_text(content: Any, **layout: Any) -> str:
    """Plain values as YAML that `read_yaml_text` reads."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, **layout)
