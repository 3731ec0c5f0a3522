"""Levanter's optimizers on qkvflow's models, told by our table what decays and what is a matrix.

Levanter goes by names of classes: it would decay gates and norms, and its Muon would find no matrix.
So every optimizer of Levanter sees a model as two tables of arrays by path, those that decay and those
that do not, and in them each hidden matrix as the linear layer that Levanter knows. Layers, basis
matrices, queries, keys and values are matrices of their own there, as for our Muon.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import draccus
import haliax as hax
import optax
from haliax import NamedArray, ScanCheckpointPolicy
from levanter.optim import OptimizerConfig

from qkvflow.config import ConfigError
from qkvflow.models.paths import nodes_of, with_arrays
from qkvflow.nn.parameters import Parameter
from qkvflow.train.muon import is_hidden_matrix

DECAYED, KEPT = "decayed", "kept"
MATRICES = "matrices"
"""The axis along which the matrices of one array stand."""
View = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ByTable(OptimizerConfig):
    """Any optimizer of Levanter, on the arrays of a model as our table has them."""

    inner: OptimizerConfig = field(kw_only=True)
    """The optimizer."""

    def __post_init__(self) -> None:
        for name in ("weight_decay_modules", "default_weight_decay_mask"):
            if getattr(self.inner, name) is not None:
                problem = f"optimizer.{name} is set; the model says what decays: leave it out."
                raise ConfigError("The optimizer cannot be made:", [problem])

    def build(self, num_train_steps: int) -> optax.GradientTransformationExtraArgs:
        """What Levanter's trainer calls."""
        own = dataclasses.replace(self.inner, weight_decay_modules=rf"{DECAYED}\.")
        inner = optax.with_extra_args_support(own.build(num_train_steps))

        def init(model: Any) -> Any:
            return inner.init(view_of(model))

        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
            seen = None if params is None else view_of(params)
            changed, state = inner.update(view_of(updates), state, seen, **extra)
            return with_view(updates, changed), state

        return optax.GradientTransformationExtraArgs(init, update)


def _encoded(chosen: ByTable, declared: Any = None) -> Any:
    """The optimizer that was chosen, as Levanter's trackers keep it with the config."""
    return draccus.encode(chosen.inner, OptimizerConfig)


draccus.encode.register(ByTable, _encoded)


def view_of(tree: Any) -> View:
    """The arrays of a model, or of a tree like it, as Levanter's optimizers see them."""
    view: View = {DECAYED: {}, KEPT: {}}
    arrays = dict(nodes_of(tree.model, NamedArray))
    for path, found in tree.model.parameters().items():
        if is_hidden_matrix(found):
            linear = [as_linear(piece, found) for piece in pieces_of(arrays[path], found)]
            view[_side(found)] |= {f"{path}.{i}": each for i, each in enumerate(linear)}
        else:
            view[_side(found)][path] = arrays[path]
    return view


def with_view(tree: Any, view: View) -> Any:
    """The same tree with the arrays of a view: the inverse of `view_of`."""
    arrays = dict(nodes_of(tree.model, NamedArray))
    for path, found in tree.model.parameters().items():
        side = view[_side(found)]
        if is_hidden_matrix(found):
            linear = [side[f"{path}.{i}"] for i in range(len(found.pieces) or 1)]
            arrays[path] = of_linear(linear, arrays[path], found)
        else:
            arrays[path] = side[path]
    plain = {path: named.array for path, named in arrays.items()}
    return dataclasses.replace(tree, model=with_arrays(tree.model, plain))


def _side(parameter: Parameter) -> str:
    return DECAYED if parameter.decays else KEPT


def pieces_of(array: NamedArray, parameter: Parameter) -> list[NamedArray]:
    """The matrices that stand side by side along the last axis of an array; itself where it is one."""
    last = array.axes[-1].name
    ends = list(itertools.accumulate(parameter.pieces))
    starts = [0, *ends[:-1]]
    return [array[last, start:end] for start, end in zip(starts, ends)] or [array]


def as_linear(array: NamedArray, parameter: Parameter) -> Any:
    """Matrices as Levanter has them: one linear layer, outputs first, or a stack of such layers."""
    In, Out, batch = (
        tuple(axis for axis in array.axes if axis.name in names)
        for names in (parameter.inputs, parameter.outputs, parameter.batch)
    )
    weight = array.rearrange((*batch, *Out, *In))
    if not batch:
        return hax.nn.Linear(weight, None, In, Out)
    flat = weight.flatten_axes(batch, MATRICES)
    Stack = flat.resolve_axis(MATRICES)
    return hax.nn.Stacked(hax.nn.Linear(flat, None, In, Out), Stack, ScanCheckpointPolicy())


def of_linear(linear: Sequence[Any], like: NamedArray, parameter: Parameter) -> NamedArray:
    """The inverse of `as_linear` for all the pieces of an array."""
    batch = tuple(axis for axis in like.axes if axis.name in parameter.batch)
    weights = [
        each.stacked.weight.unflatten_axis(MATRICES, batch) if batch else each.weight for each in linear
    ]
    ordered = [weight.rearrange(like.axis_names) for weight in weights]
    return hax.concatenate(like.axes[-1].name, ordered)
