"""Causality, exactly: no model lets a position see a later one, or another row of the batch."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.models import MODELS
from qkvflow.nn.dynamic import TABLEAUS, integrate
from tests.support import FIXED_STEP, FLAVOURS, random_model, small_config, token_ids

LENGTHS = (1, 2, 17, 128)


def gradients_to_embeddings(model, length):
    """d(random combination of row 0's logits at i) / d(x(0)), for some i: [i, batch, position]."""
    ids = token_ids(model.config, length=length).array
    chosen = sorted({0, length // 2, max(length - 2, 0), length - 1})
    direction = np.linspace(-1.0, 1.0, model.config.vocab_size, dtype=np.float32)

    @jax.jit
    def all_gradients(ids):
        tableau = TABLEAUS[model.config.integrator]
        x = model.embed(ids).array

        def outputs(x):
            named = hax.named(x, ("batch", "position", "embed"))
            y, _ = integrate(model.transformer.blocks, named, tableau, model.steps())
            return model.head(y)[0, jnp.array(chosen)] @ direction

        return jax.vmap(jax.vjp(outputs, x)[1])(jnp.eye(len(chosen)))[0]

    gradients = np.asarray(all_gradients(ids))
    return chosen, np.abs(gradients).max(axis=-1)


@pytest.mark.parametrize("integrator", FIXED_STEP)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_no_position_sees_a_later_one_or_another_row(name, flavour, integrator):
    config = small_config(flavour=flavour, integrator=integrator)
    model = random_model(name, config)
    for length in LENGTHS:
        chosen, gradients = gradients_to_embeddings(model, length)
        assert np.all(np.isfinite(gradients))
        for i, gradient in zip(chosen, gradients):
            later = gradient[0, i + 1 :]
            assert np.all(later == 0.0), f"length {length}: {i} sees later, {later.max()}"
            assert np.all(gradient[1] == 0.0), f"length {length}: {i} sees another row"
            assert np.all(gradient[0, : i + 1] > 0.0), f"length {length}: {i} does not see its past"


@pytest.mark.parametrize("name", MODELS)
def test_changing_a_token_changes_no_earlier_logit(name):
    config = small_config()
    model = random_model(name, config)
    ids = token_ids(config, length=20)
    before = model(ids).array
    for j in (1, 8, 19):
        changed = ids.array.at[0, j].set((ids.array[0, j] + 1) % config.vocab_size)
        after = model(hax.named(changed, ids.axes)).array
        assert np.array_equal(before[0, :j], after[0, :j])
        assert np.array_equal(before[1], after[1])
        assert not np.array_equal(before[0, j:], after[0, j:])
