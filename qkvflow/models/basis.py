"""Any model as `generated`: the singular value decomposition over depth.

The weights of a part, layer by layer, are the rows of a matrix M [L, size], weight and bias side by
side. With M = U S V^T, the T largest singular values give T basis matrices, the rows of V^T, and
coefficients U S for every layer. No other T matrices come closer to M in the Frobenius norm
(Eckart and Young): what is left is the root of the sum of the squares of the other singular values,
and nothing from T = L on. What `generated` adds by itself, 1 to the weights of norms, is taken off
first; its trainable offset of matrices is zero.

The coefficients are told by a time network that is a table: `layer_vector` holds the value that silu
maps to each coefficient, shifted and scaled into a range where silu can be inverted.
"""

import dataclasses
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from haliax import NamedArray

from qkvflow.config import ConfigError
from qkvflow.models.depth import merge
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.needs import bytes_of, check_fits
from qkvflow.models.paths import Arrays, arrays_of, nodes_of, with_arrays
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.families.generated import Generated, GeneratedFamily
from qkvflow.nn.families.per_layer import PerLayer
from qkvflow.nn.norm import Norm

CENTRE, REACH = 2.0, 1.0
"""Values of silu that stand for a coefficient of zero, and the distance for the largest one."""


def into_basis(model: LanguageModel, count: int) -> FlowLM:
    """The nearest model whose parts are combinations of `count` basis parts each.

    It samples `model` on the grid of its own depth, and is constant between layers.

    Raises:
        ConfigError: the count is no whole number above 0, or a layer has more than one stage.

    Examples:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=4)
        >>> model = build_model("standard", config, key=jax.random.key(0))
        >>> into_basis(model, 2).config.time_embed_dim
        2
    """
    _check(model, count)
    tables = merge(model)
    config = dataclasses.replace(
        tables.config,
        weights=GeneratedFamily(),
        time_embed_dim=int(count),
        time_embedding="layer_vector",
        layer_time="true",
        sinusoidal_dim=max(1, int(count) // 2),  # a table has 2 n + 1 columns, at least one a matrix
    )
    shapes = eqx.filter_eval_shape(FlowLM.init, config, key=jax.random.key(0))
    check_fits(bytes_of(shapes), f"A model of {count} basis matrices", "fewer of them")
    arrays = {path: array for path, array in arrays_of(tables).items() if ".blocks." not in path}
    curves = dict(nodes_of(shapes, Generated))
    for path, table in nodes_of(tables, PerLayer):
        arrays |= {f"{path}.{name}": array for name, array in _arrays(table, curves[path]).items()}
    return with_arrays(shapes, {path: jnp.asarray(array) for path, array in arrays.items()})


def depth_spectra(model: LanguageModel) -> dict[str, np.ndarray]:
    """The singular values over depth of every part of a layer, by name, largest first.

    The error of `into_basis(model, T)` in a part is the root of the sum of the squares of all but
    the first T of them.
    """
    _check(model, 1)
    found = {}
    for path, table in nodes_of(merge(model).transformer.blocks, PerLayer):
        found[map_name(path)] = np.linalg.svd(_rows(table), compute_uv=False)
    return found


def _check(model: LanguageModel, count: int) -> None:
    problems = []
    if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
        problems.append(f"the number of basis matrices is {count!r}; expected at least 1.")
    if model.plan().stages > 1:
        problems.append(
            f"the integrator {model.config.integrator} evaluates weights between layers; expected "
            "residual or euler, whose weights are one row a layer."
        )
    if model.transformer.blocks.there:
        problems.append("its layers have different parts, and a combination of layers would have all.")
    if problems:
        raise ConfigError("The model has no basis over depth:", problems)


def _rows(table: PerLayer) -> np.ndarray:
    """The weights of a part as a matrix [L, size] in double precision, less what `generated` adds."""
    parts = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(table)]
    if isinstance(table.table, Norm):
        parts[0] = parts[0] - 1.0
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _arrays(table: PerLayer, curve: Generated) -> Arrays:
    """The arrays of the curve that is nearest to a table, by their paths in it."""
    own = hax.tree_util.tree_leaves(curve.basis)
    count = own[0].array.shape[0]
    left, values, right = np.linalg.svd(_rows(table), full_matrices=False)
    unused = max(0, count - len(values))
    coefficients = np.pad((left * values)[:, :count], ((0, 0), (0, unused)))
    basis = np.pad(right[:count], ((0, unused), (0, 0)))
    pieces = np.split(basis, [own[0].size // count], axis=1)
    arrays = {
        f"basis.{name}": piece.reshape(leaf.array.shape).astype(np.float32)
        for name, leaf, piece in zip(("weight", "bias"), own, pieces)
    }
    if isinstance(curve.offset.weight, NamedArray):
        arrays["offset.weight"] = np.zeros(curve.offset.weight.array.shape, np.float32)
    return arrays | _network_arrays(curve.network, coefficients)


def _network_arrays(network: Any, coefficients: np.ndarray) -> Arrays:
    """The time network that gives these coefficients [L, T] at the layers."""
    count, features = coefficients.shape[1], network.hidden.In[0].size
    scale = np.maximum(np.abs(coefficients).max(axis=0), np.finfo(np.float32).tiny) / REACH
    table = _inverse_silu(CENTRE + coefficients / scale)
    arrays = {
        "embedding.table": np.pad(table, ((0, 0), (0, features - count))),
        "hidden.weight": np.eye(features, count),
        "hidden.bias": np.zeros(count),
        "out.weight": np.diag(scale),
        "out.bias": -CENTRE * scale,
    }
    return {f"network.{name}": array.astype(np.float32) for name, array in arrays.items()}


def _inverse_silu(y: np.ndarray) -> np.ndarray:
    """x with silu(x) = y > 0: then (x - y) exp(x - y) = y exp(-y), which Lambert's W inverts."""
    return y + scipy.special.lambertw(y * np.exp(-y)).real
