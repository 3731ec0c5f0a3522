"""Where the time of a training step of `standard` goes: its parts alone, taking turns with the whole.

Run with `python -m benchmarks.step_parts`; prints a table and writes results/step_parts.json. A part
alone has its inputs at hand and nothing to share the machine with, so the parts need not add up to the
whole. The products are made by torch, too, where it is installed.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from rich.progress import Progress

from benchmarks.speed.contest import Entry, Task, compete
from benchmarks.speed.lines import peers_are_installed
from benchmarks.speed.ours import Shape
from qkvflow.memory import keep_freed_memory
from qkvflow.nn.attention import causal_attention

RESULTS = Path(__file__).parent.parent / "results"
SHAPES = {"small": Shape(256, 4, 6, 128, 8), "large": Shape(512, 8, 8, 256, 8)}
ROUNDS = 11


def maps_of(shape):
    """(inputs, outputs) of every linear map of the model."""
    d = shape.hidden
    return [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)] * shape.layers + [(d, shape.vocab)]


def repeated(function, inputs):
    """A task: the function of all inputs, compiled as one program."""
    keep_freed_memory()
    compiled = jax.jit(lambda inputs: [function(*each) for each in inputs])
    return Task(lambda: jax.block_until_ready(compiled(inputs)))


def normal(*shape):
    """Normal numbers."""
    return jax.random.normal(jax.random.key(0), shape)


def products(shape):
    """Of every linear map: its product, and those of the gradients of its inputs and its weight."""
    tokens = shape.batch * shape.length
    sides = [(normal(tokens, m), normal(m, n), normal(tokens, n)) for m, n in maps_of(shape)]
    return repeated(lambda x, w, dy: (x @ w, dy @ w.T, x.T @ dy), sides)


def torch_products(shape):
    """The same products in torch."""
    import torch

    tokens = shape.batch * shape.length
    sides = [
        (torch.randn(tokens, m), torch.randn(m, n), torch.randn(tokens, n)) for m, n in maps_of(shape)
    ]
    return Task(lambda: [(x @ w, dy @ w.T, x.T @ dy) for x, w, dy in sides])


def attention(shape):
    """Attention without its linear maps, forward and backward, in every layer."""
    rows, length, size = _heads(shape)
    qkv = (normal(rows, 1, length, size), *[normal(rows, length, size)] * 2)
    gradient = jax.grad(lambda *qkv: jnp.sum(causal_attention(*qkv) ** 2), argnums=(0, 1, 2))
    return repeated(gradient, [tuple(x + i for x in qkv) for i in range(shape.layers)])


def _heads(shape):
    return shape.batch * shape.heads, shape.length, shape.hidden // shape.heads


def in_a_row(q, k, layers):
    """As many batched products as attention has, forward and backward, each of the one before."""
    for _ in range(3 * layers):
        q = (q @ k.mT) @ k * 1e-3
    return q


def attention_products(shape):
    """The products of attention alone, as if nothing were masked."""
    q, k = normal(*_heads(shape)), normal(*_heads(shape))
    return repeated(lambda q, k: in_a_row(q, k, shape.layers), [(q, k)])


def torch_attention_products(shape):
    """The same products in torch."""
    import torch

    q, k = torch.randn(*_heads(shape)), torch.randn(*_heads(shape))
    return Task(lambda: in_a_row(q, k, shape.layers))


def activation(shape):
    """The activation of the MLP, forward and backward, in every layer."""
    x = normal(shape.batch * shape.length, 4 * shape.hidden)
    gradient = jax.grad(lambda x: jnp.sum(jax.nn.gelu(x) ** 2))
    return repeated(gradient, [(x + i,) for i in range(shape.layers)])


def optimizer(shape):
    """AdamW on arrays of the sizes of the linear maps."""
    keep_freed_memory()
    adamw = optax.adamw(3e-4, weight_decay=0.1)
    weights = [normal(m, n) for m, n in maps_of(shape)]

    def update(weights, state):
        changes, state = adamw.update(weights, state, weights)
        return optax.apply_updates(weights, changes), state

    compiled = jax.jit(update, donate_argnums=(0, 1))
    holder = [(weights, adamw.init(weights))]

    def call():
        holder[0] = jax.block_until_ready(compiled(*holder[0]))

    return Task(call)


PARTS = (products, attention, attention_products, activation, optimizer)
PEERS = (torch_products, torch_attention_products)


def main(out=RESULTS):
    """Measure both shapes."""
    record = {}
    with Progress() as progress:
        for name, shape in SHAPES.items():
            task = progress.add_task(f"parts of a step, {name}", total=ROUNDS)
            entries = {"step": Entry("benchmarks.speed.ours:training_step", ("standard", shape))}
            parts = PARTS + PEERS if peers_are_installed() else PARTS
            entries |= {f.__name__: Entry(f"{__spec__.name}:{f.__name__}", (shape,)) for f in parts}
            found = compete(entries, ROUNDS, lambda task=task: progress.advance(task)).times
            step = found.pop("step")
            record[name] = {part: times.median / step.median for part, times in found.items()}
    for name, shares in record.items():
        for part, share in shares.items():
            print(f"{name:<6} {part:<15} {share:.2f} of the step")
    (out / "step_parts.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
