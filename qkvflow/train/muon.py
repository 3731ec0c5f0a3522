"""Muon: steps whose matrices are orthogonal, for the hidden matrices of a model; AdamW for the rest.

Momentum M of a matrix becomes U V^T, where M = U S V^T, by five steps of a Newton-Schulz iteration
(`optax.contrib.muon`), scaled so that a step is as large as one of AdamW (Liu et al. 2025): a learning
rate, and what is decayed, then mean the same for both. Layers and basis matrices along an axis are
matrices of their own; so are queries, keys and values, and what the state-space part reads as x, B, C.
"""

import itertools
from typing import Any

import jax.numpy as jnp
import optax
import optax.contrib

from qkvflow.config import OptimizerConfig
from qkvflow.models.paths import Arrays
from qkvflow.nn.parameters import Parameter, Table
from qkvflow.train.optimizer import OPTIMIZERS, by_label

RMS = 0.2
"""Size of the entries of a step over the learning rate: what AdamW's are on average."""


@OPTIMIZERS.register("muon")
def muon(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    table: Table,
    beta: float = 0.95,
    ns_steps: int = 5,
    nesterov: bool = True,
    adam_b1: float = 0.9,
    adam_b2: float = 0.95,
) -> optax.GradientTransformation:
    """Muon for hidden matrices, AdamW for embeddings, head, vectors, norms, biases, time networks."""
    matrices = {path: found for path, found in table.items() if is_hidden_matrix(found)}
    others = {path: found for path, found in table.items() if path not in matrices}
    decay: dict[str, Any] = {"weight_decay": config.weight_decay}
    orthogonal = optax.contrib.muon(
        schedule,
        beta=beta,
        ns_steps=ns_steps,
        nesterov=nesterov,
        consistent_rms=RMS,
        muon_weight_dimension_numbers=_split(_map(_axes, matrices), matrices),
        weight_decay_mask=_split(_map(_decays, matrices), matrices),
        **decay,
    )
    adam = optax.adamw(schedule, b1=adam_b1, b2=adam_b2, mask=_map(_decays, others), **decay)
    labels = {path: "muon" if path in matrices else "adamw" for path in table}
    return by_label({"muon": in_pieces(orthogonal, matrices), "adamw": adam}, labels)


def is_hidden_matrix(parameter: Parameter) -> bool:
    """Whether an array is made of matrices inside of layers."""
    return parameter.kind == "matrix" and parameter.group == "base"


def _map(function: Any, table: Table) -> dict[str, Any]:
    return {path: function(found) for path, found in table.items()}


def _decays(parameter: Parameter) -> bool:
    return parameter.decays


def _axes(parameter: Parameter) -> optax.contrib.MuonDimensionNumbers:
    """Where the inputs and the outputs of its matrices are; all other axes are batches."""
    place = {axis.name: i for i, axis in enumerate(parameter.axes)}
    return optax.contrib.MuonDimensionNumbers(
        tuple(place[name] for name in parameter.inputs),
        tuple(place[name] for name in parameter.outputs),
    )


def in_pieces(inner: optax.GradientTransformation, table: Table) -> optax.GradientTransformation:
    """A transformation that sees matrices which stand side by side in one array apart."""

    def init(parameters: Arrays) -> Any:
        return inner.init(_split(parameters, table))

    def update(updates: Arrays, state: Any, parameters: Any = None) -> tuple[Arrays, Any]:
        own = None if parameters is None else _split(parameters, table)
        changed, state = inner.update(_split(updates, table), state, own)
        return {path: _joined(changed, path, found) for path, found in table.items()}, state

    return optax.GradientTransformation(init, update)


def _names(path: str, parameter: Parameter) -> list[str]:
    return [f"{path}.{i}" for i in range(len(parameter.pieces))] or [path]


def _split(values: dict[str, Any], table: Table) -> dict[str, Any]:
    """By the names of the pieces: arrays in pieces, anything else for each of them."""
    found: dict[str, Any] = {}
    for path, parameter in table.items():
        value, names = values[path], _names(path, parameter)
        ends = list(itertools.accumulate(parameter.pieces))[:-1]
        is_array = hasattr(value, "shape")
        found |= zip(names, jnp.split(value, ends, axis=-1) if is_array else [value] * len(names))
    return found


def _joined(pieces: Arrays, path: str, parameter: Parameter) -> Any:
    return jnp.concatenate([pieces[name] for name in _names(path, parameter)], axis=-1)
