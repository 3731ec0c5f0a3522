"""What is measured of this library: steps of training, gradients, generation, the scan, a product.

Every function makes a `Task` in the process of a contestant, and first does what the command that it
stands for does.
"""

import time
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.contest import Task
from qkvflow.config import Gpt2Config, RunConfig
from qkvflow.generate import generate
from qkvflow.memory import keep_freed_memory
from qkvflow.models import FlowLM, build_model, count_parameters, training_flops
from qkvflow.nn.ssm_scan import scan_by_chunks, scan_by_loop
from qkvflow.train.program import RUNS_ONCE
from qkvflow.train.step import Learner, over_seeds, split

SEED = np.uint32(0)


@dataclass(frozen=True)
class Shape:
    """The size of a model and of a batch."""

    hidden: int
    heads: int
    layers: int
    length: int
    batch: int
    vocab: int = 256

    def config(self, **fields: Any) -> Gpt2Config:
        """The architecture of this shape."""
        return Gpt2Config(
            hidden_dim=self.hidden, num_heads=self.heads, num_layers=self.layers, **fields
        )

    def ids(self) -> np.ndarray:
        """Token ids of a batch."""
        random = np.random.default_rng(0)
        return random.integers(0, self.vocab, (self.batch, self.length)).astype(np.int32)


def matrix_product(size: int) -> Task:
    """A product of two square matrices."""
    keep_freed_memory()
    x = jnp.ones((size, size))
    product = jax.jit(lambda x: x @ x)
    return Task(lambda: product(x).block_until_ready(), {"flops": 2 * size**3})


def _learner(name: str, shape: Shape, dtype: str = "float32") -> Learner:
    keep_freed_memory()
    run = RunConfig(
        model=name,
        length=shape.length,
        batch_size=shape.batch,
        architecture=shape.config(compute_dtype=dtype),
    )
    return Learner.of(run, run.model_config(shape.vocab))


def _start(learner: Learner, seeds: int) -> Any:
    numbers = np.arange(seeds, dtype=np.uint32) if seeds > 1 else SEED
    start = jax.jit(over_seeds(learner.start, seeds)).lower(numbers)
    return numbers, start.compile(compiler_options=RUNS_ONCE)(numbers)


def training_step(name: str, shape: Shape, seeds: int = 1, dtype: str = "float32") -> Task:
    """A step of `qkvflow train`; of several seeds at once where there are several."""
    learner = _learner(name, shape, dtype)
    numbers, state = _start(learner, seeds)
    ids = shape.ids() if seeds == 1 else np.stack([shape.ids()] * seeds)
    begin = time.perf_counter()
    step = jax.jit(over_seeds(learner.step, seeds), donate_argnums=0)
    compiled = step.lower(state, numbers, ids, ids).compile()
    seconds = time.perf_counter() - begin
    holder = [state]

    def call() -> None:
        holder[0], report = compiled(holder[0], numbers, ids, ids)
        report.loss.block_until_ready()

    return Task(call, {"compile_seconds": seconds, **_facts(learner, shape)})


def gradients(name: str, shape: Shape) -> Task:
    """Loss and gradients: a step of training without its optimizer."""
    learner = _learner(name, shape)
    _, state = _start(learner, 1)
    ids = shape.ids()
    compiled = jax.jit(learner.gradients)
    arguments = *split(state.parameters, learner.trained), jax.random.key(0), ids, ids
    return Task(lambda: jax.block_until_ready(compiled(*arguments)), _facts(learner, shape))


def _facts(learner: Learner, shape: Shape) -> dict[str, Any]:
    return {
        "flops": training_flops(learner.model, shape.batch, shape.length),
        "parameters": count_parameters(learner.model).total,
    }


def generation(name: str, shape: Shape, new: int) -> Task:
    """A greedy continuation of `shape.length` tokens by `new` ones."""
    keep_freed_memory()
    config = shape.config(max_position_embeddings=shape.length + new, vocab_size=shape.vocab)
    model = build_model(name, config, key=jax.random.key(0))
    prompt = hax.named(jnp.asarray(shape.ids()), ("batch", "position"))

    def call() -> None:
        generate(model, prompt, new, temperature=0.0).array.block_until_ready()

    return Task(call, {"tokens": shape.batch * new})


def continuation(parts: tuple[str, ...], shape: Shape, offset: int, capacity: int) -> Task:
    """64 tokens, one after the other, that follow `offset` others; caches for `capacity` tokens."""
    keep_freed_memory()
    fields = {"weights": "gated", "order": "sequential", "integrator": "residual"}
    config = shape.config(parts=parts, max_position_embeddings=capacity, **fields)
    model = FlowLM.init(config, key=jax.random.key(0))
    layers, caches = model.layers(), model.empty_caches(shape.batch, capacity)

    @eqx.filter_jit
    def run(model: FlowLM, layers: Any, caches: Any) -> Any:
        def step(carry: Any, position: Any) -> tuple[Any, None]:
            token, caches = carry
            logits, caches = model.extend(layers, token, caches, position)
            return (jnp.argmax(logits, axis=-1), caches), None

        first = jnp.zeros((shape.batch, 1), jnp.int32)
        return jax.lax.scan(step, (first, caches), offset + jnp.arange(64))[0][0]

    return Task(lambda: run(model, layers, caches).block_until_ready())


def state_space_scan(route: str, chunk: int, batch: int, length: int, heads: int) -> Task:
    """The recurrence of the state-space part, forward and backward; 64 channels, 64 states a head."""
    keep_freed_memory()
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (batch, length, heads, 64))
    delta = jax.nn.softplus(jax.random.normal(keys[1], (batch, length, heads)) - 4)
    B, C = (jax.random.normal(k, (batch, length, 64)) for k in keys[2:])
    A, state = -jnp.linspace(1.0, 16.0, heads), jnp.zeros((batch, 64, heads, 64))

    def loss(x: Any, delta: Any, A: Any, B: Any, C: Any) -> Any:
        if route == "loop":
            return jnp.sum(scan_by_loop(x, delta, A, B, C, state)[0] ** 2)
        return jnp.sum(scan_by_chunks(x, delta, A, B, C, state, chunk_size=chunk)[0] ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))
    return Task(lambda: jax.block_until_ready(gradient(x, delta, A, B, C)))
