"""Attention written out against `jax.nn.dot_product_attention`, forward and backward, alternating.

Run with `python benchmarks/attention.py`; prints a table and writes results/attention.json. It is why
`qkvflow.nn.attention.causal_attention` is written out on CPU.
"""

import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from qkvflow.nn.attention import causal_attention, fused_attention

RESULTS = Path(__file__).parent.parent / "results"
SHAPES = ((8, 4, 128, 64), (8, 8, 256, 64), (2, 4, 1024, 64))
RUNS = 15


def gradient_of(attention):
    """The gradient of a scalar of the output with respect to queries, keys and values."""
    return jax.jit(jax.grad(lambda qkv: jnp.sum(attention(*qkv) ** 2)))


def medians(functions, argument):
    """Median seconds of each function, runs alternating."""
    times = {name: [] for name in functions}
    for function in functions.values():
        jax.block_until_ready(function(argument))
    for _ in range(RUNS):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function(argument))
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main(out=RESULTS):
    """Measure every shape."""
    functions = {"written out": gradient_of(causal_attention), "fused": gradient_of(fused_attention)}
    rows = []
    for batch, heads, length, size in SHAPES:
        keys = jax.random.split(jax.random.key(0), 3)
        shapes = (batch * heads, 1, length, size), (batch * heads, length, size)
        qkv = [jax.random.normal(k, shapes[min(i, 1)]) for i, k in enumerate(keys)]
        times = medians(functions, qkv)
        ratio = times["written out"] / times["fused"]
        rows.append({"batch": batch, "heads": heads, "length": length, "size": size, "ratio": ratio})
        print(f"batch {batch}, heads {heads}, length {length:>4}: written out / fused = {ratio:.2f}")
    record = {"backend": jax.default_backend(), "runs": RUNS, "rows": rows}
    (out / "attention.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
