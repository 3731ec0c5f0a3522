"""An unrolled model against the model, for every weight family at every depth from 1 to 64.

Run with `python benchmarks/unroll.py`; takes some minutes, prints a table and writes
results/unroll.json. It is why tests/models/test_unroll.py computes a few depths only and reads the
rest. At random parameters, in float32, "own" compares `unroll(model, L)` with the model of L layers,
"grid" compares it with the model of 6 layers on the grid of L. A difference is the largest of any
logit, over the largest logit where that is above 1.
"""

import json
import os
from pathlib import Path

os.environ.setdefault(  # compiling is nearly all the time
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)

import equinox as eqx
import haliax as hax
import jax
import numpy as np
from rich.progress import track

from qkvflow.config import Gpt2Config
from qkvflow.models import build_model, unroll
from qkvflow.nn.families import FAMILIES
from qkvflow.nn.time_embed import layer_times

RESULTS = Path(__file__).parent.parent / "results"
DEPTHS = range(1, 65)
TRAINED_DEPTH = 6
SMALL = {
    "hidden_dim": 8,
    "num_heads": 2,
    "num_kv_heads": 1,
    "vocab_size": 13,
    "max_position_embeddings": 8,
    "mlp_ratio": 2,
    "time_embed_dim": 6,
    "sinusoidal_dim": 3,
}


def random_model(weights, depth):
    """`standard` with other weights, no array of which is at its start."""
    family = {"family": weights, "rank": 2} if weights == "low_rank" else weights
    config = Gpt2Config(weights=family, num_layers=depth, **SMALL)
    shapes = eqx.filter_eval_shape(build_model, "standard", config, key=jax.random.key(0))
    noise = np.random.default_rng(depth)
    draw = lambda leaf: (0.3 * noise.normal(size=leaf.shape)).astype(leaf.dtype)  # noqa: E731
    is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)  # noqa: E731
    return jax.tree.map(lambda leaf: draw(leaf) if is_shape(leaf) else leaf, shapes)


def relative_difference(got, expected):
    """The largest difference of any logit."""
    got, expected = np.asarray(got.array), np.asarray(expected.array)
    return float(np.max(np.abs(got - expected)) / max(1.0, np.max(np.abs(expected))))


def differences(weights, depth, ids):
    """The two differences of one family at one depth."""
    deep, trained = random_model(weights, depth), random_model(weights, TRAINED_DEPTH)
    own = relative_difference(unroll(deep, depth)(ids), deep(ids))
    on_grid = trained(ids, t=layer_times(depth))
    return {"own": own, "grid": relative_difference(unroll(trained, depth)(ids), on_grid)}


def main(out=RESULTS):
    """Compare every family at every depth."""
    ids = np.random.default_rng(0).integers(0, SMALL["vocab_size"], (2, 5), dtype=np.int32)
    ids = hax.named(ids, ("batch", "position"))
    families = {weights: {"own": [], "grid": []} for weights in FAMILIES}
    for depth in track(DEPTHS, "Depths"):
        for weights, found in families.items():
            for kind, difference in differences(weights, depth, ids).items():
                found[kind].append(difference)
        jax.clear_caches()  # a process may hold only so many memory mappings
    for weights, found in families.items():
        print(f"{weights:<10} own {max(found['own']):.1e}, grid {max(found['grid']):.1e}")
    record = {"backend": jax.default_backend(), "depths": list(DEPTHS), "families": families}
    (out / "unroll.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
