"""Any model as `looped`: shared layers, and low-rank parts of every visit.

A layer that is visited several times gets the mean of the weights of its visits, the matrix that is
nearest to all of them. What is left of a visit, R = W - mean, is told by a pair of factors (`lora`):
with R = U S V^T the first `rank` columns of U and rows of S V^T, the nearest of that rank (Eckart and
Young). Norms are a visit's own, and exact; biases of shared layers are their mean, since no factor adds
to them. With as many ranks as the matrices have, a model without biases is the same.

Reference: Bae et al., Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA,
2024, whose initialisation this is.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray

from qkvflow.config import ConfigError
from qkvflow.config.variants import ADAPTERS, FAMILIES
from qkvflow.models.depth import merge
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.needs import bytes_of, check_fits
from qkvflow.models.paths import Arrays, arrays_of, nodes_of, with_arrays
from qkvflow.nn.adapters import Adapted
from qkvflow.nn.families.looped import Looped
from qkvflow.nn.families.per_layer import PerLayer
from qkvflow.nn.weights import Weight


def into_loop(model: LanguageModel, plan: str | tuple[int, ...], rank: int) -> FlowLM:
    """The model whose layers are visited in the order of a plan, near to `model` at each visit.

    Args:
        plan: one visit for every layer, such as 1 + 2x2 + 1 for six.
        rank: of what every visit has of its own.

    Raises:
        ConfigError: the plan has other visits than the model layers, or a layer has several stages.

    Examples:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=6)
        >>> model = build_model("standard", config, key=jax.random.key(0))
        >>> into_loop(model, "1 + 2x2 + 1", rank=4).config.weights.plan
        '1 + 2x2 + 1'
    """
    if model.plan().stages > 1:
        problem = f"the integrator {model.config.integrator} evaluates weights between layers."
        raise ConfigError("The model has no loop plan:", [problem])
    family = FAMILIES.read({"family": "looped", "plan": plan})
    lora = ADAPTERS.read({"method": "lora", "rank": rank, "alpha": float(rank)})
    tables = merge(model)
    config = dataclasses.replace(tables.config, weights=family, adapter=lora)
    shapes = eqx.filter_eval_shape(FlowLM.init, config, key=jax.random.key(0))
    check_fits(bytes_of(shapes), f"A loop with parts of rank {rank}", "a smaller rank")
    arrays = {path: array for path, array in arrays_of(tables).items() if ".blocks." not in path}
    curves = dict(nodes_of(shapes, Weight))
    for path, table in nodes_of(tables, PerLayer):
        arrays |= {f"{path}.{name}": array for name, array in _arrays(table, curves[path]).items()}
    return with_arrays(shapes, {path: jnp.asarray(array) for path, array in arrays.items()})


def loop_error(model: LanguageModel, looped: LanguageModel) -> float:
    """What the weights of all visits lose, over their size, both as root of the sum of squares."""
    own, near = (arrays_of(merge(each).transformer.blocks) for each in (model, looped))
    whole = {path: np.asarray(array, np.float64) for path, array in own.items()}
    left = {path: array - np.asarray(near[path]) for path, array in whole.items()}
    return float((_squares(left) / _squares(whole)) ** 0.5)


def _squares(arrays: Arrays) -> float:
    return sum(float(np.sum(np.square(array))) for array in arrays.values())


def _arrays(table: PerLayer, curve: Any) -> Arrays:
    """The arrays of the curve that is nearest to a table, by their paths in it."""
    if isinstance(curve, Looped):
        return {f"table.{name}": array for name, array in _shared(table, curve).items()}
    assert isinstance(curve, Adapted)
    assert isinstance(curve.base, Looped)
    shared = _shared(table, curve.base)
    mean = shared["weight"][list(curve.base.order)]
    left = np.asarray(table.table.weight.array, np.float64) - mean
    down, up = curve.down.table.weight.array.shape, curve.up.table.weight.array.shape
    first, second = _factors(left.reshape(len(left), int(np.prod(down[1:-1])), -1), down[-1])
    factors = {"down": first.reshape(down), "up": second.reshape(up)}
    return {f"base.table.{name}": array for name, array in shared.items()} | {
        f"{name}.table.weight": array.astype(np.float32) for name, array in factors.items()
    }


def _shared(table: PerLayer, curve: Looped) -> Arrays:
    """The mean over the visits of every entry, of the weight and of the bias."""
    named = {"weight": table.table.weight, "bias": table.table.bias}
    order = np.asarray(curve.order)
    return {
        name: np.stack([_mean(array, order == entry) for entry in range(int(order.max()) + 1)])
        for name, array in named.items()
        if isinstance(array, NamedArray)
    }


def _mean(array: NamedArray, chosen: np.ndarray) -> np.ndarray:
    return np.asarray(array.array, np.float64)[chosen].mean(axis=0).astype(np.float32)


def _factors(left: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Of matrices [L, in, out] the nearest pairs [L, in, rank] and [L, rank, out].

    The first one is orthonormal, as large as a fresh `lora` draws it: where nothing is left of a visit
    the second one is zero, and can be trained.
    """
    u, s, v = np.linalg.svd(left, full_matrices=False)
    unused = max(0, rank - s.shape[1])
    first, second = u[..., :rank], (s[..., None] * v)[:, :rank]
    return np.pad(first, ((0, 0), (0, 0), (0, unused))), np.pad(second, ((0, 0), (0, unused), (0, 0)))
