"""Variants: the ways to do a thing that a config chooses among, each with settings of its own.

A weight family, a part of a layer, an integrator and an adapter are each one file: a frozen dataclass
of settings that registers itself under a name and knows how to make the thing. In a config a variant
is its name, or a table of the name and its settings:

    weights: gated
    weights: {family: gated, gate: both}
    parts: [attention, {part: ssm, state_size: 16}]
    integrator: {method: adaptive, rtol: 1e-4}
    adapter: {method: lora, rank: 4}

The modules that make them are imported when the first one is named: reading a config needs no JAX.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from qkvflow.config.registry import Registry
from qkvflow.config.strict import ConfigError, Positive, Size, nearest, problems_of

if TYPE_CHECKING:
    from qkvflow.config.neuralode_ssm_config import Gpt2Config

_Variant = TypeVar("_Variant", bound="Variant")


class Variant(ABC):
    """A choice and its settings. A subclass is a frozen dataclass; its fields are the settings."""

    word: ClassVar[str]
    """What stands before the name in a table: family, part, method."""
    name: ClassVar[str] = ""
    """Under which it is registered."""

    def problems(self) -> list[str]:
        """A sentence for all that cannot be, beside what the annotations of the settings say."""
        return []

    def to_table(self) -> Any:
        """The name, or a table of the name and all settings, but for those left open (None)."""
        settings = {field.name: getattr(self, field.name) for field in _fields(type(self))}
        plain = {
            name: value.to_table() if isinstance(value, Variant) else value
            for name, value in settings.items()
            if value is not None
        }
        return {self.word: self.name, **plain} if plain else self.name

    def __str__(self) -> str:
        return self.name


def _fields(variant: type[Variant]) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(variant)  # type: ignore[arg-type]


class Variants(Registry[type[_Variant]], Generic[_Variant]):
    """The variants of one kind; they can be read from what a config says."""

    def __init__(self, kind: str, home: str, base: Any):
        super().__init__(kind, home)
        self.base = base

    def _accept(self, name: str, entry: type[_Variant]) -> None:
        entry.name = name

    def read(self, value: Any) -> _Variant:
        """The variant that a name, or a table of a name and settings, stands for.

        Raises:
            ConfigError: there is no such variant, or it has no such setting.
        """
        if isinstance(value, self.base):
            return value
        table = {self.base.word: value} if isinstance(value, str) else value
        if not isinstance(table, Mapping) or not isinstance(table.get(self.base.word), str):
            problem = (
                f"got {value!r}; expected a name, or a table like {{{self.base.word}: NAME, ...}}."
            )
            raise ConfigError(f"The {self.kind} cannot be used:", [problem])
        variant = self[table[self.base.word]]
        return self._made(variant, {name: v for name, v in table.items() if name != self.base.word})

    def _made(self, variant: type[_Variant], settings: Mapping[str, Any]) -> _Variant:
        known = [field.name for field in _fields(variant)]
        problems = [
            f"{variant.name} has no setting {name!r}. {_known(str(name), known)}"
            for name in settings
            if name not in known
        ]
        if not problems:
            plain = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
            made = variant(**plain)
            problems = [f"{variant.name}: {problem}" for problem in problems_of(made)]
        if problems:
            raise ConfigError(f"The {self.kind} cannot be used:", problems)
        return made


def _known(name: str, known: list[str]) -> str:
    return nearest(name, known) if known else "It has no settings."


class Family(Variant):
    """How weights depend on depth: it makes a layer of curves from an ordinary layer."""

    word = "family"
    goes_around: ClassVar[bool] = False
    """Whether its curves can stand around those of another family (`curve_around`)."""

    @abstractmethod
    def layer(self, make: Any, config: "Gpt2Config", *, key: Any) -> Any:
        """A layer like those that `make(key)` gives, with curves for its linear maps and norms."""

    def words(self, config: "Gpt2Config") -> frozenset[str]:
        """What its layers say of themselves: parts, and "ends" where passes through a loop end."""
        return frozenset()

    def presence(self, config: "Gpt2Config") -> dict[str, Any]:
        """Of every part that is not in all layers, the curve that says where it is."""
        return {}

    def curve_around(self, base: Any, like: Any, config: "Gpt2Config", *, key: Any) -> Any:
        """The curve of a linear map with that of this family around it, which changes nothing yet.

        `like` has the axes of that map. Only of families that say so (`goes_around`).
        """
        raise NotImplementedError(f"{self.name} cannot wrap other curves")

    def misfits(self, config: "Gpt2Config") -> list[str]:
        """A sentence for everything in a config that this family does not go with."""
        return []


class Part(Variant):
    """What a layer is made of: attention, an MLP, a state-space part."""

    word = "part"

    @abstractmethod
    def build(self, config: "Gpt2Config", *, key: Any, out_gain: float) -> Any:
        """The part with fresh weights, its output map smaller or larger by a gain."""

    def misfits(self, config: "Gpt2Config") -> list[str]:
        """A sentence for everything in a config that this part does not go with."""
        return []

    def width_multiple(self, config: "Gpt2Config") -> int:
        """Widths of the model that this part can have are multiples of this one."""
        return 1


class Integrator(Variant):
    """How the layers are added up. Fixed-step methods and the adaptive one: `qkvflow.nn`."""

    word = "method"
    unit_step: ClassVar[bool] = False
    """Whether the steps of a model's own grid are 1."""
    has_grid: ClassVar[bool] = True
    """Whether the layers are known before the forward pass."""

    @abstractmethod
    def plan(self, depth: int, t: Any = None) -> Any:
        """The layers of a forward pass: when each is, and how large its step.

        Raises:
            ConfigError: this method has no grid over depth.
        """

    def at_depth(self, own: int, depth: int, *, unit_steps: bool = False) -> "Integrator":
        """The same method for a grid of `depth` layers in place of `own` ones: the steps' sum stays.

        With `unit_steps` every step is 1 instead, if the method's are on its own grid.
        """
        return self

    @abstractmethod
    def table_times(self, depth: int) -> Any:
        """Where a table of weights has entries: every time at which the weights are looked at."""

    @abstractmethod
    def follow(self, curves: Any, x: Any, config: "Gpt2Config", t: Any, context: Any) -> Any:
        """x(1) from x(0), through a block of curves."""

    def follow_with_action(
        self, curves: Any, x: Any, config: "Gpt2Config", t: Any, context: Any
    ) -> tuple[Any, Any]:
        """x(1), and the integral over depth of the mean of |dx/dt|^2 over tokens and width.

        Raises:
            ConfigError: this method does not say how fast x is.
        """
        raise ConfigError(
            f"The integrator {self.name!r} cannot be trained with a speed_penalty:",
            ["it does not compute the speed of x. Use a fixed-step one: residual, euler, heun, rk4."],
        )

    @property
    def remedy(self) -> str:
        """What to do where it gave up in a forward pass, if it can."""
        return ""


@dataclass(frozen=True)
class Adapter(Variant):
    """What is put around curves that are there already, and trained in their stead."""

    word = "method"
    any_depth: ClassVar[bool] = False
    """Whether it can be used at other depths than the one it was trained at."""

    rank: Size = 8
    """Rank of the low-rank factors; more rank means more trained parameters."""
    alpha: Positive = 16.0
    """Scale of factors that do not depend on depth: their product is multiplied by alpha / rank."""
    maps: tuple[str, ...] = ("*.*",)
    """Linear maps to adapt, by pattern: attention.qkv, mlp.*, lm_head. *.*: all maps of every layer."""

    def problems(self) -> list[str]:
        return [] if self.maps else ["maps is empty; expected the name of at least one linear map."]

    @abstractmethod
    def around(self, curve: Any, config: "Gpt2Config", *, key: Any) -> Any:
        """The same curve with fresh arrays that change nothing yet."""

    @abstractmethod
    def around_head(self, head: Any, *, key: Any) -> Any:
        """The same for the output projection, which is a curve that has one time."""


FAMILIES = Variants[Family]("weight family", "qkvflow.nn.families", Family)
PARTS = Variants[Part]("part of a layer", "qkvflow.nn.dynamic", Part)
INTEGRATORS = Variants[Integrator]("integrator", "qkvflow.nn.integrators", Integrator)
ADAPTERS = Variants[Adapter]("adapter", "qkvflow.nn.adapters", Adapter)
