"""The linear maps that a layer applies, as products of two factors, and what modulates them over depth.

| circuit | matrix on the residual stream, one a head | it says |
|---|---|---|
| `qk` | W_q W_k^T / sqrt(D) | which direction of a token looks for which direction of another |
| `ov` | W_v W_o | what is written where a direction is read |
| `mlp` | W_up W_down (of the value branch, where the other is a gate) | the feed-forward map, unbent |
| `ssm` | W_x W_out | the value path of the state-space part, for a signal that does not change |

Rows are read: y = x M. What a part reads has gone through a norm, z = (x - mean) / rms * gain, so that
scaling the gain up and the matrix down changes nothing in the function. It may not change a spectrum:
the gain, and for layer norm the mean, are folded into the first factor; so are the taps of the short
convolution (their sum) and the gain of the inner norm of the state-space part. Not in here: biases, the
softmax, activations, rotary positions (the `qk` of llama is that of a token and itself), the size of a
step, and what norms of queries and keys divide by (their gains are folded in).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np

from qkvflow.config import ConfigError
from qkvflow.models import LanguageModel
from qkvflow.models.paths import modulators_of
from qkvflow.nn.dynamic import Block
from qkvflow.nn.norm import Norm
from qkvflow.nn.weights import resolve


@dataclass(frozen=True)
class Circuit:
    """left @ right at several times, for several heads, in float64."""

    left: np.ndarray
    """[time, head, E, inner]"""
    right: np.ndarray
    """[time, head, inner, E]"""

    @property
    def matrices(self) -> np.ndarray:
        """The products themselves, [time, head, E, E]: large."""
        return self.left @ self.right


def layers_at(model: LanguageModel, times: np.ndarray) -> Block:
    """The block at every time: arrays of numpy with a leading axis of times."""
    block = eqx.filter_jit(resolve)(model.transformer.blocks, np.asarray(times, np.float32))
    return jax.device_get(block)


def circuits_of(
    model: LanguageModel, times: np.ndarray, names: tuple[str, ...] | None = None
) -> dict[str, Circuit]:
    """The circuits of a model at some times; of these names, or all that it has.

    Raises:
        ConfigError: the model has no part that such a circuit belongs to.
    """
    chosen = check_circuits(model, names)
    layers = layers_at(model, times)
    return {name: _CIRCUITS[name][1](layers) for name in chosen}


def check_circuits(model: LanguageModel, names: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """These names, or those of all circuits of a model; refuses a name that it does not have."""
    parts = model.transformer.blocks.names
    has = tuple(name for name, (part, _) in _CIRCUITS.items() if part in parts)
    missing = [name for name in names or () if name not in has]
    if missing:
        raise ConfigError(
            "These spectra cannot be computed:",
            [
                f"{name} belongs to {_CIRCUITS[name][0]}, and this model is made of "
                f"{' and '.join(parts)}; it has {', '.join(has)}."
                for name in missing
            ],
        )
    return names or has


def _float64(named: Any) -> np.ndarray:
    return np.asarray(named.array, np.float64)


def _reading(norm: Norm, factor: np.ndarray) -> np.ndarray:
    """A first factor [time, ..., E, inner], with what its norm does to x folded in."""
    gain = _float64(norm.weight)
    factor = factor * gain.reshape(len(gain), *(1,) * (factor.ndim - 3), -1, 1)
    return factor - factor.mean(axis=-2, keepdims=True) if norm.kind == "layer" else factor


def _heads(layers: Block) -> tuple[Norm, np.ndarray, np.ndarray]:
    """Q, K and V [time, kv head, qkv, E, D], and the output map [time, kv head, group, D, E]."""
    attention: Any = layers.parts["attention"].part
    qkv = np.moveaxis(_float64(attention.qkv.weight), 1, 3)
    return layers.parts["attention"].norm, qkv, _float64(attention.out.weight)


def _one_a_query(factor: np.ndarray) -> np.ndarray:
    """[time, kv head, group, ...] as [time, head, ...]."""
    return factor.reshape(len(factor), -1, *factor.shape[3:])


def _qk(layers: Block) -> Circuit:
    norm, qkv, _ = _heads(layers)
    qkv = _reading(norm, qkv)
    part: Any = layers.parts["attention"].part
    if part.query_norm is not None:  # their gains; what they divide by is no linear map
        gains = np.stack([_float64(norm.weight) for norm in (part.query_norm, part.key_norm)], axis=1)
        qkv[:, :, :-2] *= gains[:, None, :1, None]
        qkv[:, :, -2] *= gains[:, None, 1, None]
    queries = qkv[:, :, :-2] / np.sqrt(qkv.shape[-1])
    keys = np.broadcast_to(qkv[:, :, -2:-1], queries.shape)
    return Circuit(_one_a_query(queries), _one_a_query(keys).swapaxes(-1, -2))


def _ov(layers: Block) -> Circuit:
    norm, qkv, out = _heads(layers)
    values = _reading(norm, qkv)[:, :, -1:]
    values = np.broadcast_to(values, (*out.shape[:3], *values.shape[3:]))
    return Circuit(_one_a_query(values), _one_a_query(out))


def _mlp(layers: Block) -> Circuit:
    mlp: Any = layers.parts["mlp"].part
    up = _float64(mlp.up.weight)[:, :, -1]
    return Circuit(_reading(layers.parts["mlp"].norm, up)[:, None], _float64(mlp.down.weight)[:, None])


def _ssm(layers: Block) -> Circuit:
    ssm: Any = layers.parts["ssm"].part
    out = _float64(ssm.norm.weight)[:, :, None] * _float64(ssm.out.weight)
    inner = out.shape[1]
    taps = _float64(ssm.conv.weight).sum(axis=1, keepdims=True)
    values = (_float64(ssm.xbc.weight) * taps)[:, :, :inner]
    return Circuit(_reading(layers.parts["ssm"].norm, values)[:, None], out[:, None])


_CIRCUITS: dict[str, tuple[str, Callable[[Block], Circuit]]] = {
    "qk": ("attention", _qk),
    "ov": ("attention", _ov),
    "mlp": ("mlp", _mlp),
    "ssm": ("ssm", _ssm),
}


def modulators(model: LanguageModel, times: np.ndarray) -> dict[str, np.ndarray]:
    """The modulators [time, number] of every map that has some, by its name.

    Of gated weights these are the gates, one a row, a column or a weight; of low_rank s(t), one a rank;
    of generated the coefficients e(t), one a basis matrix.

    Raises:
        ConfigError: nothing modulates the weights of this model.
    """
    found = modulators_of(model.transformer.blocks, np.asarray(times, np.float32))
    if not found:
        raise ConfigError(
            "There is no modulation to analyze:",
            [
                f"the weights of this model are {model.config.weights}: no gate, scale or coefficient "
                "depends on depth. Modulation belongs to gated, low_rank and generated weights."
            ],
        )
    return {name: np.asarray(values, np.float64) for name, values in found.items()}
