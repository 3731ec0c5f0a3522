"""Drafts from the model itself against plain generation, side by side, one text at a time.

Run with `python -m benchmarks.drafts --checkpoint runs/elastic` for a model that was trained at
several depths (`qkvflow train --config configs/elastic.yaml --out runs/elastic`), on a machine that
has nothing else to do; prints a table and writes results/drafts.json. A prompt of the model's own text
is continued in turns, plainly and with drafts of every depth and number of tokens; a ratio is of the
tokens per second in the same turn, and the median of the turns counts. Temperature 0, and 0.8.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp

from benchmarks.speed.contest import measured
from qkvflow.data import default_cache_dir, load_corpus, prepare
from qkvflow.generate import generate, generate_with_drafts
from qkvflow.memory import keep_freed_memory
from qkvflow.provenance import machine
from qkvflow.train import load_model, read_tokenizer
from qkvflow.train.resume import own_text

RESULTS = Path(__file__).parent.parent / "results"
DEPTHS, TOKENS = (1, 2), (2, 4)
"""Layers of drafts, and tokens that they propose at a time."""
TEMPERATURES = (0.0, 0.8)
ROUNDS = 7
BOUND = 1.3
"""What the tokens per second with drafts should be of those without."""


def read_valid(checkpoint):
    """The valid split of the text that a model was trained on."""
    data, documents = own_text(checkpoint, None, "run")
    corpus = load_corpus(data, limit=documents)
    return prepare(corpus, read_tokenizer(checkpoint), default_cache_dir())["valid"]


def read_prompt(split, length):
    """The first tokens of a split."""
    return hax.named(jnp.asarray(split.ids[:length].astype("int32"))[None], ("batch", "position"))


def seconds(call, seed):
    """Time of a call."""
    start = time.perf_counter()
    call(seed)
    return time.perf_counter() - start


def compare(model, prompt, count, temperature, depth, tokens):
    """Turns of plain generation and of drafts."""
    found = []

    def plain(seed):
        text = generate(model, prompt, count, key=jax.random.key(seed), temperature=temperature)
        text.array.block_until_ready()

    def drafting(seed):
        how = {"temperature": temperature, "draft_depth": depth, "draft_tokens": tokens}
        found.append(generate_with_drafts(model, prompt, count, key=jax.random.key(seed), **how))

    plain(0), drafting(0)
    times = [(seconds(plain, seed), seconds(drafting, seed)) for seed in range(1, ROUNDS + 1)]
    proposed, accepted = sum(d.proposed for d in found), sum(d.accepted for d in found)
    return {
        "temperature": temperature,
        "depth": depth,
        "draft_tokens": tokens,
        "tokens_per_second": count / statistics.median(own for own, _ in times),
        "ratios": [own / drafts for own, drafts in times],
        "ratio": statistics.median(own / drafts for own, drafts in times),
        "acceptance": accepted / max(proposed, 1),
        "needed": found[0].needed,
        "given_up": sum(d.note is not None for d in found) / len(found),
    }


def main(arguments=None, out=RESULTS):
    """Measure every temperature, depth and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="Directory of a run.")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    model = load_model(options.checkpoint)
    longest, layers = model.config.max_position_embeddings, model.config.num_layers
    prompt = read_prompt(read_valid(options.checkpoint), longest // 4)
    rows = [
        compare(model, prompt, longest - longest // 4, temperature, depth, tokens)
        for temperature in TEMPERATURES
        for depth in DEPTHS
        if depth < layers
        for tokens in TOKENS
    ]
    for row in rows:
        what = f"temperature {row['temperature']}, depth {row['depth']}, {row['draft_tokens']} tokens"
        shares = f"accepted {row['acceptance']:.0%} (needed {row['needed']:.0%})"
        print(f"{what}: {row['ratio']:.2f} times the tokens per second, {shares}")
    best = max(row["ratio"] for row in rows)
    shape = {"width": model.config.hidden_dim, "layers": layers}
    record = {**shape, "at_least": BOUND, "holds": best >= BOUND, "best": best, "rows": rows}
    record |= {"machine": machine(), "measured": measured()}
    (out / "drafts.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
