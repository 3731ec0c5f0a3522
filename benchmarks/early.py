"""Tokens that stop early: what it costs in loss and saves in time, beside running fewer layers.

Run with `python -m benchmarks.early --checkpoint runs/elastic` for a model that was trained at several
depths, on a machine that has nothing else to do; prints a table and writes results/early.json. Losses
are on a part of the valid split of the model's own text. A prompt from there is continued in turns,
plainly and with every bound; a ratio is of the tokens per second in the same turn, and the median of
the turns counts. Temperature 0.8.
"""

import argparse
import json
import statistics
from pathlib import Path

import jax

from benchmarks.drafts import read_prompt, read_valid, seconds
from benchmarks.speed.contest import measured
from qkvflow.analysis.depth_curve import depth_curve
from qkvflow.analysis.early import early_curve
from qkvflow.generate import generate, generate_stopping_early
from qkvflow.memory import keep_freed_memory
from qkvflow.provenance import machine
from qkvflow.train import load_model

RESULTS = Path(__file__).parent.parent / "results"
BOUNDS = (0.0, 0.02, 0.1, 0.3, 1.0)
"""From no token that stops early to all tokens after two layers."""
DEPTHS = (2, 4, 8)
"""Layers that the whole text is run with, for comparison, where the model has more."""
TOKENS = 32768
ROUNDS = 7
TEMPERATURE = 0.8


def compare(model, prompt, count, bound):
    """Turns of plain generation and of one in which tokens stop within a bound."""
    found = []

    def plain(seed):
        how = {"key": jax.random.key(seed), "temperature": TEMPERATURE}
        generate(model, prompt, count, **how).array.block_until_ready()

    def stopping(seed):
        how = {"key": jax.random.key(seed), "temperature": TEMPERATURE, "bound": bound}
        found.append(generate_stopping_early(model, prompt, count, **how))

    plain(0), stopping(0)
    times = [(seconds(plain, seed), seconds(stopping, seed)) for seed in range(1, ROUNDS + 1)]
    return {
        "bound": bound,
        "layers": statistics.mean(each.layers for each in found[1:]),
        "tokens_per_second": count / statistics.median(own for own, _ in times),
        "ratios": [own / stopped for own, stopped in times],
        "ratio": statistics.median(own / stopped for own, stopped in times),
    }


def main(arguments=None, out=RESULTS):
    """Measure every bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="Directory of a run.")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    model = load_model(options.checkpoint)
    longest, layers = model.config.max_position_embeddings, model.config.num_layers
    split = read_valid(options.checkpoint)
    how = {"length": longest, "tokens": TOKENS}
    judged = early_curve(model, split, BOUNDS, **how)
    fewer = depth_curve(model, split, [depth for depth in DEPTHS if depth < layers], **how)
    prompt = read_prompt(split, longest // 4)
    rows = [
        compare(model, prompt, longest - longest // 4, point.bound)
        | {"evaluated_layers": point.layers, "loss": point.evaluation.loss}
        for point in judged
    ]
    for row in rows:
        used = f"{row['evaluated_layers']:.1f} of {layers} layers, loss {row['loss']:.4f}"
        print(f"bound {row['bound']}: {used}, {row['ratio']:.2f} times the tokens per second")
    depths = [{"layers": point.depth, "loss": point.evaluation.loss} for point in fewer]
    for depth in depths:
        print(f"all tokens with {depth['layers']} layers: loss {depth['loss']:.4f}")
    shape = {"width": model.config.hidden_dim, "layers": layers}
    record = {**shape, "temperature": TEMPERATURE, "rows": rows, "fewer_layers": depths}
    record |= {"machine": machine(), "measured": measured()}
    (out / "early.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
