"""Loss against depth where every token stops when its prediction has settled, at several bounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from qkvflow.data import TokenSplit
from qkvflow.models import LanguageModel
from qkvflow.models.early import check_early, settled_pass
from qkvflow.models.language_model import losses_of
from qkvflow.report.table import Table
from qkvflow.train.evaluation import Evaluation, evaluate


@dataclass(frozen=True)
class EarlyPoint:
    """A model whose tokens stop within a bound."""

    bound: float
    evaluation: Evaluation
    layers: float
    """That a token went through, on average."""


def early_curve(
    model: LanguageModel,
    split: TokenSplit,
    bounds: Sequence[float],
    *,
    length: int,
    batch_size: int = 8,
    tokens: int | None = None,
    advance: Callable[[int], None] = lambda windows: None,
) -> list[EarlyPoint]:
    """A model at each of several bounds, on the same tokens of a split.

    Raises:
        ConfigError: a bound is none, or tokens of this model cannot stop early.
    """
    for bound in bounds:
        check_early(model, bound)
    how: dict[str, Any] = {"length": length, "batch_size": batch_size, "tokens": tokens}
    return [_point(model, split, bound, **how, advance=advance) for bound in bounds]


def _point(model: LanguageModel, split: TokenSplit, bound: float, **how: Any) -> EarlyPoint:
    layers: list[np.ndarray] = []

    def losses(model: LanguageModel, inputs: Array, targets: Array, mask: Array) -> Array:
        found, used = _window_losses(model, inputs, targets, mask, jnp.float32(bound))
        layers.append(np.asarray(used))
        return found

    result = evaluate(model, split, **how, losses=losses)
    return EarlyPoint(bound, result, float(np.concatenate(layers).sum() / result.tokens))


@eqx.filter_jit
def _window_losses(
    model: LanguageModel, inputs: Array, targets: Array, mask: Array, bound: Array
) -> tuple[Array, Array]:
    """Sums over windows: of losses, and of the layers that tokens went through."""
    found = settled_pass(model, model.layers(), inputs, None, 0, bound)
    losses = jnp.where(mask, losses_of(found.logits, targets), 0.0)
    return jnp.sum(losses, axis=-1), jnp.sum(jnp.where(mask, found.layers, 0), axis=-1)


def early_table(points: Sequence[EarlyPoint]) -> Table:
    """A row for every bound."""
    heads = ("bound", "layers per token", "nats/token", "standard error", "bits/byte")
    rows = (
        (
            f"{point.bound:g}",
            f"{point.layers:.2f}",
            f"{point.evaluation.loss:.4f}",
            f"{point.evaluation.standard_error:.4f}",
            f"{point.evaluation.bits_per_byte:.4f}",
        )
        for point in points
    )
    return Table(heads, tuple(rows))
