"""The way of the residual stream over depth, and what the model would predict on it.

`path` looks at the states themselves. `lens` reads every state with the model's own last norm and head
(the logit lens): what would be predicted if the model ended there.
"""

from typing import NamedTuple

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from qkvflow.models import LanguageModel


class Path(NamedTuple):
    """Of every token, over depth: D states, D - 1 steps between them."""

    norm: np.ndarray
    """[D, T]: length of x."""
    turn: np.ndarray
    """[D - 1, T]: angle between a state and the next, in degrees."""
    to_end: np.ndarray
    """[D, T]: angle between a state and the last, in degrees."""
    speed: np.ndarray
    """[D - 1, T]: distance to the next state over the depth between them."""


def path(states: np.ndarray, depths: np.ndarray) -> Path:
    """The way of states [D, T, E] at depths [D].

    Examples:
        >>> ahead = np.array([[[1.0, 0.0]], [[1.0, 1.0]], [[0.0, 1.0]]])
        >>> path(ahead, np.array([0.0, 0.5, 1.0])).turn[:, 0].round(6).tolist()
        [45.0, 45.0]
    """
    x = np.asarray(states, np.float64)
    spans = np.diff(depths)[:, None]
    return Path(
        norm=np.linalg.norm(x, axis=-1),
        turn=_angle(x[:-1], x[1:]),
        to_end=_angle(x, np.broadcast_to(x[-1], x.shape)),
        speed=np.linalg.norm(np.diff(x, axis=0), axis=-1) / spans,
    )


def _angle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The angle between vectors, in degrees; unlike the arc cosine it is exact for small ones, too."""
    u, v = (w / np.maximum(np.linalg.norm(w, axis=-1, keepdims=True), 1e-300) for w in (a, b))
    apart, together = np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1)
    return np.degrees(2 * np.arctan2(apart, together))


class Lens(NamedTuple):
    """What would be predicted at every state: arrays [D, T], losses [D, T - 1]."""

    loss: np.ndarray
    """Of the true next token, in nats."""
    entropy: np.ndarray
    """Of the prediction, in nats."""
    divergence: np.ndarray
    """Kullback-Leibler, of the last prediction from this one, in nats."""
    choice: np.ndarray
    """The likeliest token's id."""
    probability: np.ndarray
    """Of that token."""


def lens(model: LanguageModel, states: Array, ids: np.ndarray) -> Lens:
    """The predictions at states [D, T, E] of the text with these ids [T]."""
    found = _lens(model, jnp.asarray(states), jnp.asarray(ids, jnp.int32))
    return Lens(*(np.asarray(array) for array in found))


@eqx.filter_jit
def _lens(model: LanguageModel, states: Array, ids: Array) -> tuple[Array, ...]:
    def log_probabilities(x: Array) -> Array:
        named = hax.named(x[None], ("batch", "position", "embed"))
        return jax.nn.log_softmax(model.head(named)[0], axis=-1)

    last = log_probabilities(states[-1])

    def look(x: Array) -> tuple[Array, ...]:
        here = log_probabilities(x)
        loss = -jnp.take_along_axis(here[:-1], ids[1:, None], axis=-1)[:, 0]
        entropy = -jnp.sum(jnp.exp(here) * here, axis=-1)
        divergence = jnp.sum(jnp.exp(last) * (last - here), axis=-1)
        choice = jnp.argmax(here, axis=-1)
        return loss, entropy, divergence, choice, jnp.exp(jnp.max(here, axis=-1))

    return lax.map(look, states)  # one depth at a time: all logits at once may not fit


def settled(choice: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """The depth [T] from which on the likeliest token [D, T] is the last one, for good.

    Examples:
        >>> settled(np.array([[7, 7], [3, 7], [7, 7]]), np.array([0.0, 0.5, 1.0])).tolist()
        [1.0, 0.0]
    """
    differs = choice != choice[-1]
    later = len(choice) - np.argmax(differs[::-1], axis=0)
    return np.asarray(depths)[np.where(differs.any(axis=0), later, 0)]
