"""The documented API from end to end: configure, build, run, train, look inside, change depth, speak.

Run with `python example_usage.py` (or `make example`). It takes less than a minute on two cores.
"""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import jax.random as jrandom
import optax

from qkvflow.config.neuralode_ssm_config import Gpt2Config
from qkvflow.generate import generate
from qkvflow.models import count_parameters, unroll
from qkvflow.models.neuralode_lm import NeuralODELM
from qkvflow.models.neuralode_ssm_lm import NeuralODESSMLM

TEXT = "A weight is a curve over depth; a layer is a point on it. " * 40

config = Gpt2Config(
    num_layers=4,
    hidden_dim=64,
    num_heads=4,
    vocab_size=256,
    max_position_embeddings=128,
    use_bias=True,
    activation_function="gelu",
    attn_pdrop=0.1,
    resid_pdrop=0.1,
    embd_pdrop=0.1,
)
optimizer = optax.adam(learning_rate=3e-3)


def toy_batch(step, batch_size=8, length=64):
    """Windows of the text as bytes, and the same windows one byte later."""
    data = jnp.frombuffer(TEXT.encode(), jnp.uint8).astype(jnp.int32)
    starts = jrandom.randint(jrandom.PRNGKey(step), (batch_size,), 0, len(TEXT) - length - 1)
    rows = data[starts[:, None] + jnp.arange(length + 1)]
    Batch, Position = hax.Axis("batch", batch_size), hax.Axis("position", length)
    return hax.named(rows[:, :-1], (Batch, Position)), hax.named(rows[:, 1:], (Batch, Position))


@eqx.filter_jit
def train_step(model, opt_state, batch, key):
    """One step of Adam."""
    input_ids, target_ids = batch

    def loss_fn(model):
        return model.compute_loss(input_ids, target_ids, t=None, key=key)

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, opt_state = optimizer.update(grads, opt_state, model)
    return eqx.apply_updates(model, updates), opt_state, loss


def demonstrate(name, model_class):
    """Build, run, train and inspect one model."""
    print(f"\n{name}\n{'-' * len(name)}")
    model = model_class.init(config, key=jrandom.PRNGKey(0))
    print(f"Parameters: {count_parameters(model).total:,} {count_parameters(model)}")

    input_ids, target_ids = toy_batch(0)
    logits = model(input_ids, t=None, key=None)
    print(f"Forward pass: {dict(input_ids.shape)} -> {dict(logits.shape)}")
    print(f"Loss before training: {float(model.compute_loss(input_ids, target_ids)):.3f} nats per byte")

    opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
    for step in range(60):
        key = jrandom.PRNGKey(step)
        model, opt_state, loss = train_step(model, opt_state, toy_batch(step), key)
        if step % 20 == 19:
            print(f"  step {step + 1:>3}, loss {float(loss):.3f}")

    embedding = model.transformer.wte.weight
    print(
        f"Token embedding: {dict(embedding.shape)}; blocks: {type(model.transformer.blocks).__name__}"
    )
    for depth in (2, 4, 8):
        loss = unroll(model, depth).compute_loss(input_ids, target_ids)
        print(f"Loss at {depth} layers: {float(loss):.3f}" + (" (trained depth)" if depth == 4 else ""))

    prompt = hax.named(jnp.array([list(b"A weight is")]), ("batch", "position"))
    text = generate(model, prompt, 48, temperature=0.0)
    print(f"Greedy: {bytes(text.array[0].tolist()).decode(errors='replace')!r}")


def main():
    """Show both time-indexed models."""
    print(f"JAX on {jax.default_backend()}")
    demonstrate("Time-indexed MLP (NeuralODELM)", NeuralODELM)
    demonstrate("Time-indexed SSM (NeuralODESSMLM)", NeuralODESSMLM)


if __name__ == "__main__":
    main()
