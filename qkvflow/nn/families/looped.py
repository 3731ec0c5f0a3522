"""A few layers, some of them visited several times: own first and last layers around a loop."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from jax import Array

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.strict import shown
from qkvflow.config.variants import FAMILIES, Family
from qkvflow.nn.linear import Linear
from qkvflow.nn.norm import Norm
from qkvflow.nn.presence import ENDS, Presence, kept_rows, layer_problems, presence, rows, words_of
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import Affine, MakeLayer, Weight, is_affine, map_named, visited

NORMS = "norms"
"""What stands for norms, and for vectors of parameters, among what every visit has of its own."""
_AROUND = 0x61726F75  # sets the keys of what goes around visits apart from those of the layers
_WRITTEN = re.compile(r"(?:(\d+) *\+ *)?(\d+) *x *(\d+)(?: *\+ *(\d+))?")


class Loop(NamedTuple):
    """Layers in the order of their visits: `first` ones, the `core` again and again, `last` ones."""

    first: int
    core: int
    last: int

    @property
    def distinct(self) -> int:
        """Layers that have weights."""
        return sum(self)

    @property
    def ends(self) -> tuple[bool, ...]:
        """Whether a pass ends with a layer: the first ones, the core, the last ones."""
        last = {self.first - 1, self.first + self.core - 1, self.distinct - 1}
        return tuple(layer in last for layer in range(self.distinct))

    def order(self, visits: int) -> tuple[int, ...]:
        """The layer of every visit. Where there is no room for the core it is left out, then the first.

        Examples:
            >>> Loop(1, 2, 1).order(6), Loop(1, 2, 1).order(7), Loop(1, 2, 1).order(2)
            ((0, 1, 2, 1, 2, 3), (0, 1, 2, 1, 2, 1, 3), (0, 3))
        """
        inner = max(visits - self.first - self.last, 0)
        core = [self.first + i % self.core for i in range(inner)]
        last = range(self.first + self.core, self.distinct)
        return (*range(self.first), *core, *last)[-visits:]

    def visits_of(self, visits: int, own: int) -> tuple[int, ...]:
        """Of every visit, which of `own` visits of the same layer it is like: as far into the loops."""
        order, known = self.order(visits), self.order(own)
        return tuple(_alike(visit, order, known) for visit in range(visits))


def _alike(visit: int, order: tuple[int, ...], known: tuple[int, ...]) -> int:
    places = [i for i, layer in enumerate(known) if layer == order[visit]]
    before, all_ = order[:visit].count(order[visit]), order.count(order[visit])
    return places[before * len(places) // all_]


class Looped(Weight):
    """W(t) is the entry of a table that an order of visits names; t goes on over all visits."""

    table: Affine
    order: tuple[int, ...] = eqx.field(static=True)
    """The entry of every visit."""
    loop: Loop | None = eqx.field(static=True)
    """How the order goes on at other depths; None: it has no other."""
    visits: int | None = eqx.field(static=True)
    """Visits that have an entry each; None: layers have."""
    here: tuple[bool, ...] | None = eqx.field(static=True, default=None)
    """Whether a layer, or a visit, has an entry; None: all have one."""

    def at(self, t: Time) -> Any:
        """The entries of the visits that are nearest to these times."""
        entries = rows(self.here or (True,) * (max(self.order) + 1))
        return visited(self.table, tuple(entries[i] for i in self.order), t)

    def at_depth(self, depth: int) -> "Looped":
        """The same table, visited in the order of so many visits."""
        if depth == len(self.order):
            return self
        if self.loop is None:
            problem = f"its plan is a list of {len(self.order)} visits; write it as 1 + 2x2 + 1."
            raise ConfigError("This model has no other depth:", [problem])
        order = (
            self.loop.order(depth) if self.visits is None else self.loop.visits_of(depth, self.visits)
        )
        return dataclasses.replace(self, order=order)


@FAMILIES.register("looped")
@dataclass(frozen=True)
class LoopedFamily(Family):
    """Layers that are visited several times, in the order of a plan."""

    plan: str | tuple[int, ...] | None = None
    """Layer plan FIRST + CORExLOOPS + LAST, such as 1 + 2x2 + 1: first and last layers, and between
    them a core that is visited LOOPS times. Or the layers in order: [0, 1, 2, 1, 2, 3]. None: 1 +
    CORE x 2 + 1, with a core that fits num_layers."""
    own: tuple[str, ...] = (NORMS,)
    """Parameters that are separate for each visit of a layer: norms (with the scalars of the layer), or
    parts by name."""
    layers: tuple[str, ...] | None = None
    """Parts of each layer (not of each visit), by name: [ssm, ssm mlp]. None: all parts in each."""
    around: Family | None = None
    """Weight family around the shared weights, which makes them differ by visit: gated, {family:
    low_rank, rank: 4}. None: all visits use the same weights."""

    def __post_init__(self) -> None:
        if self.around is not None:
            object.__setattr__(self, "around", FAMILIES.read(self.around))

    def problems(self) -> list[str]:
        """A plan that cannot be read or leaves a layer out; a family that goes around nothing."""
        return self._plan_problems() + self._around_problems()

    def _around_problems(self) -> list[str]:
        if self.around is None or self.around.goes_around:
            return []
        known = ", ".join(name for name in FAMILIES if FAMILIES[name].goes_around)
        return [f"around is {self.around}, which cannot wrap other weights; expected one of {known}."]

    def _plan_problems(self) -> list[str]:
        if isinstance(self.plan, str):
            found = _WRITTEN.fullmatch(self.plan.strip())
            if found is None or 0 in map(int, found.group(2, 3)):
                return [f"plan is {shown(self.plan)}; expected FIRST + CORExLOOPS + LAST: 1 + 2x2 + 1."]
        elif self.plan is not None and not (self.plan and {*self.plan} == {*range(max(self.plan) + 1)}):
            expected = "a list that visits every layer, numbered from 0: [0, 1, 2, 1, 2, 3]"
            return [f"plan is {shown(list(self.plan))}; expected {expected}."]
        return []

    def misfits(self, config: Gpt2Config) -> list[str]:
        visits = self._visits()
        problems = []
        if visits not in (None, config.num_layers):
            problems.append(
                f"weights: looped: the plan has {visits} visits but num_layers is {config.num_layers}; "
                f"set num_layers to {visits}."
            )
        known = [NORMS, *(part.name for part in config.parts or ())]
        if config.parts is not None:
            problems += [
                f"weights: looped: own lists {name!r}; expected some of {', '.join(known)}."
                for name in self.own
                if name not in known
            ]
        loop, order = self._order(config.num_layers)
        distinct = max(order) + 1 if loop is None else loop.distinct
        found = layer_problems(self.layers, distinct, config)
        return problems + [f"weights: looped: {problem}" for problem in found]

    def presence(self, config: Gpt2Config) -> dict[str, Presence]:
        loop, order = self._order(config.num_layers)
        found = presence(self.layers, order, loop)
        if loop is not None and config.mix_streams == ENDS and config.streams > 1:
            found |= {ENDS: Presence(loop.ends, order, loop)}
        return found

    def words(self, config: Gpt2Config) -> frozenset[str]:
        loop, _ = self._order(config.num_layers)
        return words_of(self.layers) | ({ENDS} if loop is not None else set())

    def layer(self, make: MakeLayer, config: Gpt2Config, *, key: Array) -> Any:
        depth = config.num_layers
        (loop, order), there = self._order(depth), self.presence(config)
        k_layers, k_visits = jax.random.split(key)
        layers = _stacked(make, max(order) + 1, k_layers)
        visits = _stacked(make, depth, k_visits)
        pairs, structure = jax.tree_util.tree_flatten_with_path(layers, is_leaf=is_affine)
        of_visits = jax.tree.leaves(visits, is_leaf=is_affine)
        keys = jax.random.split(jax.random.fold_in(key, _AROUND), len(pairs))
        curves: list[Weight] = []
        for (path, shared), own, k in zip(pairs, of_visits, keys):
            here = kept_rows(there, path)
            if self._is_own(path, own):
                here = here and tuple(here[layer] for layer in order)
                curves.append(_of_those(Looped(own, tuple(range(depth)), loop, depth, here)))
            else:
                curve = _of_those(Looped(shared, order, loop, None, here))
                curves.append(self._relaxed(curve, config, k))
        return jax.tree.unflatten(structure, curves)

    def _relaxed(self, shared: Looped, config: Gpt2Config, key: Array) -> Weight:
        """What visits of a layer share, with another curve around it; norms are shared as they are."""
        if self.around is None or isinstance(shared.table, Norm):
            return shared
        return self.around.curve_around(shared, shared.table, config, key=key)

    def _is_own(self, path: Any, affine: Affine) -> bool:
        """Whether every visit has its own: a norm or a vector, or what is inside of a part."""
        is_small = not (isinstance(affine, Linear) and affine.In)
        parts = {getattr(entry, "key", None) for entry in path}
        return (is_small and NORMS in self.own) or not parts.isdisjoint(self.own)

    def _visits(self) -> int | None:
        if isinstance(self.plan, str):
            first, core, loops, last = _numbers(self.plan)
            return first + core * loops + last
        return None if self.plan is None else len(self.plan)

    def _order(self, depth: int) -> tuple[Loop | None, tuple[int, ...]]:
        """The loop, if it is one, and the layer of every visit."""
        loop = self._loop(depth)
        if loop is not None:
            return loop, loop.order(depth)
        assert isinstance(self.plan, tuple)
        return None, self.plan

    def _loop(self, depth: int) -> Loop | None:
        """How the order is made; None where it is a list."""
        if isinstance(self.plan, str):
            first, core, _, last = _numbers(self.plan)
            return Loop(first, core, last)
        if self.plan is not None:
            return None
        ends = (1, 1) if depth > 3 else (int(depth == 3), 0)
        return Loop(ends[0], max(1, (depth - 2) // 2), ends[1])


def _of_those(curve: Looped) -> Looped:
    """The same curve, its table without the entries of layers that lack the part."""
    if curve.here is None:
        return curve
    chosen = np.flatnonzero(curve.here)
    table = map_named(lambda array: jnp.take(array, chosen, axis=0), curve.table)
    return dataclasses.replace(curve, table=table)


def _numbers(plan: str) -> tuple[int, ...]:
    """FIRST, CORE, LOOPS and LAST of a plan."""
    found = _WRITTEN.fullmatch(plan.strip())
    assert found is not None, "it was checked"
    return tuple(int(number or 0) for number in found.groups())


def _stacked(make: MakeLayer, count: int, key: Array) -> Any:
    """So many layers, drawn apart, their arrays with a leading axis."""
    return hax.vmap(make, Axis("layers", count))(jax.random.split(key, count))
