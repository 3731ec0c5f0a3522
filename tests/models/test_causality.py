"""Causality, exactly: no model lets a position see a later one, or another row of the batch."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.models import MODELS
from qkvflow.nn.dynamic import integrate
from tests.support import FLAVOURS, random_model, small_config, token_ids


def some_positions(length):
    return sorted({0, length // 2, max(length - 2, 0), length - 1})


def logits_of_embeddings(model):
    """The function from x(0) [batch, position, embed] to logits."""

    def logits(x):
        named = hax.named(x, ("batch", "position", "embed"))
        return model.head(integrate(model.transformer.blocks, named, model.plan())[0])

    return logits


def changes_of_logits(model, length):
    """d(logits) / d(x(0) of row 0 at j) in one direction, for some j: [j, batch, position]."""
    chosen = some_positions(length)
    directions = np.zeros((len(chosen), 2, length, model.config.hidden_dim), np.float32)
    directions[range(len(chosen)), 0, chosen] = np.linspace(-1.0, 1.0, model.config.hidden_dim)

    @jax.jit
    def all_changes(ids, directions):
        x, logits = model.embed(ids).array, logits_of_embeddings(model)
        return jax.vmap(lambda direction: jax.jvp(logits, (x,), (direction,))[1])(directions)

    changes = np.asarray(all_changes(token_ids(model.config, length=length).array, directions))
    return chosen, np.abs(changes).max(axis=-1)


# Both flavours and all integrators for every model, but not all pairs: each takes long to compile.
@pytest.mark.parametrize(
    ("flavour", "integrator", "lengths"),
    [
        ("gpt2", "residual", (1, 2, 17, 128)),
        ("llama", "residual", (2, 128)),
        ("llama", "euler", (17,)),
        ("llama", "heun", (17,)),
        ("gpt2", "rk4", (17,)),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_no_position_sees_a_later_one_or_another_row(name, flavour, integrator, lengths):
    model = random_model(name, small_config(flavour=flavour, integrator=integrator))
    for length in lengths:
        chosen, changes = changes_of_logits(model, length)
        assert np.all(np.isfinite(changes))
        for j, change in zip(chosen, changes):
            earlier = change[0, :j]
            assert np.all(earlier == 0.0), f"length {length}: {j} is seen before, {earlier.max()}"
            assert np.all(change[1] == 0.0), f"length {length}: {j} is seen in another row"
            assert np.all(change[0, j:] > 0.0), f"length {length}: {j} is not seen after"


def gradients_to_embeddings(model, length):
    """d(random combination of row 0's logits at i) / d(x(0)), for some i: [i, batch, position]."""
    chosen = some_positions(length)
    direction = np.linspace(-1.0, 1.0, model.config.vocab_size, dtype=np.float32)

    @jax.jit
    def all_gradients(ids):
        logits = logits_of_embeddings(model)
        combined = lambda x: logits(x)[0, jnp.array(chosen)] @ direction  # noqa: E731
        backwards = jax.vjp(combined, model.embed(ids).array)[1]
        return jax.vmap(backwards)(jnp.eye(len(chosen)))[0]

    gradients = np.asarray(all_gradients(token_ids(model.config, length=length).array))
    return chosen, np.abs(gradients).max(axis=-1)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_no_gradient_comes_from_a_later_position_or_another_row(name, flavour):
    """The same derivatives backwards, as in training, with each model's own integrator."""
    chosen, gradients = gradients_to_embeddings(random_model(name, small_config(flavour=flavour)), 17)
    assert np.all(np.isfinite(gradients))
    for i, gradient in zip(chosen, gradients):
        later = gradient[0, i + 1 :]
        assert np.all(later == 0.0), f"{i} sees later, {later.max()}"
        assert np.all(gradient[1] == 0.0), f"{i} sees another row"
        assert np.all(gradient[0, : i + 1] > 0.0), f"{i} does not see its past"


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
