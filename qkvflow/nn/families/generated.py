"""All weights generated from depth: the Neural ODE Transformer of Tong et al. (ICLR 2025)."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import FAMILIES, Family
from qkvflow.nn.norm import Norm
from qkvflow.nn.time_embed import Time, TimeNetwork
from qkvflow.nn.weights import Affine, MakeLayer, Weight, map_affine, map_named, size


class Generated(Weight):
    """W(t) = F_0 + sum_k e_k(t) F_k with e = MLP(embedding(t)): a learned basis over depth.

    `offset` is F_0, where a number (0 for biases, 1 for the weights of norms) is not trained, as in
    Tong et al.; `basis` is F_1 ... F_T with a leading axis "basis". At a vector of L times this is
    one matrix product, [L, T] x [T, size], which reads the basis once and not L times.
    """

    offset: Any
    basis: Affine
    network: TimeNetwork

    def at(self, t: Time) -> Any:
        """The basis, combined with the coefficients at t."""
        coefficients = self.network.at(t)

        def combine(basis: Array, offset: Any) -> Array:
            flat = coefficients @ basis.reshape(basis.shape[0], -1)
            value = flat.reshape(coefficients.shape[:-1] + basis.shape[1:])
            if isinstance(offset, Array):
                offset = offset.reshape((1,) * (value.ndim - offset.ndim) + offset.shape)
            return value + offset

        return map_named(combine, self.basis, self.offset)

    def operations(self) -> int:
        return 2 * size(self.network) + 2 * size(self.basis)

    def dimension(self, times: Time) -> int:
        """Rank r = min(T, L - 1) beside the offset, and the ways in which the coefficients can turn.

        What has no offset of its own is of rank min(T, L), and 1 is in its span only by chance.
        """
        count, units = self.network.embedding.distinct(np.size(times)), self.network.units
        entries = size(self.basis) // units
        offset, rank = size(self.offset), min(units, count - 1)
        of_rank = offset * (1 + rank) + (entries - offset) * min(units, count)
        constants = min(units, entries - offset) if units < count else 0
        turns = min((count - 1 - rank) * entries, self.network.freedom(count))
        return of_rank + constants + turns

    def modulators(self, times: Time) -> dict[str, Array]:
        """The coefficients e(t), one a basis matrix."""
        return {"": self.network.at(times)}


@FAMILIES.register("generated")
@dataclass(frozen=True)
class GeneratedFamily(Family):
    """Every linear map and norm a combination of T = time_embed_dim basis maps.

    The offset has an ordinary layer's weights, and the basis 1 / sqrt(T) of their size, so that a
    layer starts out near an ordinary one and differs a little at each depth.
    """

    def layer(self, make: MakeLayer, config: Gpt2Config, *, key: Array) -> Any:
        k_layer, k_basis = jax.random.split(key)
        return map_affine(lambda affine, k: _curve(affine, config, k), make(k_layer), k_basis)


def _curve(affine: Affine, config: Gpt2Config, key: Array) -> Generated:
    k_network, k_weight = jax.random.split(key)
    Basis = Axis("basis", config.time_embed_dim)
    network = TimeNetwork.init(config, (Basis,), key=k_network, zero=False)
    basis: Any = hax.tree_util.tree_map(lambda array: hax.zeros((Basis, *array.axes)), affine)
    no_bias = 0.0 if affine.bias is not None else None
    offset: Any = eqx.tree_at(lambda a: a.bias, affine, no_bias, is_leaf=lambda x: x is None)
    if isinstance(affine, Norm):
        return Generated(eqx.tree_at(lambda a: a.weight, offset, 1.0), basis, network)
    scale = jnp.sqrt(jnp.mean(jnp.square(affine.weight.array)) / Basis.size)
    weight = hax.random.normal(k_weight, basis.weight.axes) * scale
    return Generated(offset, eqx.tree_at(lambda a: a.weight, basis, weight), network)
