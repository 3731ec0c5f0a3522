"""Layers that have some of the parts only: `layers: [ssm, ssm mlp]` in the table of a family."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.config import Gpt2Config
from qkvflow.config.strict import shown
from qkvflow.nn.time_embed import Time, layer_times, visit_index
from qkvflow.nn.weights import Weight

ENDS = "ends"
"""Said of a layer after which several streams meet."""


class Grid(Protocol):
    """What knows the layer of every visit, at any depth."""

    def order(self, visits: int) -> tuple[int, ...]:
        """The layer of every one of so many visits."""


class Presence(Weight):
    """Whether a part is in the layer that is visited at t: a curve without arrays."""

    layers: tuple[bool, ...] = eqx.field(static=True)
    """Of every layer that has weights."""
    order: tuple[int, ...] = eqx.field(static=True)
    """The layer of every visit."""
    grid: Grid | None = eqx.field(static=True)
    """How the order goes on at other depths; None: it has no other, or its curves say so."""

    def at(self, t: Time) -> Any:
        """A truth value, known before anything is compiled where the time is."""
        found = np.asarray(self.layers)[np.asarray(self.order)]
        visit = visit_index(t, len(self.order))
        if isinstance(visit, jax.Array):
            return jnp.take(jnp.asarray(found), visit)
        return bool(found[visit]) if np.ndim(visit) == 0 else found[visit]

    def at_depth(self, depth: int) -> "Presence":
        """The same layers, in the order of so many visits."""
        order = self.order if self.grid is None else self.grid.order(depth)
        return Presence(self.layers, order, self.grid)


def presence(layers: Sequence[str] | None, order: tuple[int, ...], grid: Grid | None) -> dict[str, Any]:
    """Of every part that is not in all layers, where it is."""
    words = [layer.split() for layer in layers or ()]
    names = dict.fromkeys(name for word in words for name in word)
    found = {name: tuple(name in word for word in words) for name in names}
    return {name: Presence(here, order, grid) for name, here in found.items() if not all(here)}


def kept_rows(there: Mapping[str, Presence], path: Any) -> tuple[bool, ...] | None:
    """The layers that have the part to which a path leads; None: all."""
    keys = (str(getattr(entry, "key", "")) for entry in path)
    return next((there[key].layers for key in keys if key in there), None)


def rows(here: Sequence[bool]) -> tuple[int, ...]:
    """The row of every layer in a table of those that have a part; of others, that of the next one."""
    before = np.cumsum([0, *here])[:-1]
    return tuple(int(row) for row in np.minimum(before, sum(here) - 1))


def words_of(layers: Sequence[str] | None) -> frozenset[str]:
    """All that is said of layers."""
    return frozenset(word for layer in layers or () for word in layer.split())


def words_at(names: Sequence[str], there: Mapping[str, Presence], depth: int) -> tuple[str, ...] | None:
    """What a table of one entry a layer says of the parts of a pass through so many layers."""
    if not there and ENDS not in names:
        return None
    found = {name: curve.at_depth(depth).at(layer_times(depth)) for name, curve in there.items()}
    return tuple(
        " ".join(name for name in names if name not in found or found[name][i]) for i in range(depth)
    )


def layer_problems(layers: tuple[str, ...] | None, count: int, config: Gpt2Config) -> list[str]:
    """A sentence where words for the parts of layers do not go with a config."""
    if layers is None:
        return []
    problems = []
    if len(layers) != count:
        problems.append(f"layers has {len(layers)} entries; expected one for each of {count} layers.")
    if config.parts is not None:
        names = [part.name for part in config.parts]
        other = {ENDS} if config.streams > 1 and config.mix_streams == ENDS else set()
        is_empty = any(not {*layer.split()} - other for layer in layers)
        if words_of(layers) - other != {*names} or is_empty:
            expected = f"for each layer some of {', '.join(names)}, and each of them somewhere"
            problems.append(f"layers is {shown(list(layers))}; expected {expected}.")
    method = config.integrator
    if method is not None and method.name not in ("residual", "euler"):
        problems.append(
            f"layers: {method} evaluates weights between layers, where no layer says which parts there "
            "are; use residual or euler."
        )
    return problems
