"""Twenty steps of a model of 100M parameters with Levanter, on this machine: memory and MFU.

    python -m benchmarks.levanter_100m

Width 768, 12 layers, flavour `modern`, sub-word tokens of the text that Python carries with it. MFU is
the rate of operations that Levanter logs, by our counts, over that of a product of two 2048 x 2048
matrices in float32 just before, on the same cores.
"""

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import yaml

from qkvflow.data import load_corpus
from qkvflow.data.bpe import BPETokenizer

OUT = Path(__file__).parent.parent / "results" / "levanter.json"
STEPS, ROWS, LENGTH, VOCABULARY, SIDE = 20, 4, 256, 8192, 2048
CONFIG = {
    "model": {
        **{"type": "qkvflow", "name": "standard", "max_seq_len": LENGTH},
        "architecture": {"flavour": "modern", "hidden_dim": 768, "num_heads": 12, "num_layers": 12},
    },
    "data": {
        **{"tokenizer": "tokenizer", "cache_dir": "cache"},
        "components": {"text": {"source": {"type": "qkvflow", "corpus": "embedded"}}},
    },
    "optimizer": {"type": "adam", "learning_rate": 6e-4, "weight_decay": 0.1, "warmup": 2},
    "trainer": {
        **{"id": "hundred", "mp": "f32", "train_batch_size": ROWS, "num_train_steps": STEPS},
        **{"steps_per_eval": 1000, "max_eval_batches": 2, "require_accelerator": False},
        **{"log_jaxprs": False, "log_xla_hlo": False, "tracker": {"type": "json_logger"}},
        "checkpointer": {"base_path": "checkpoints", "save_interval": "60m"},
    },
}


def peak() -> float:
    """Operations a second of a product of two matrices: the best of five."""
    product = jax.jit(lambda a, b: a @ b)
    a = jnp.ones((SIDE, SIDE))
    product(a, a).block_until_ready()
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        product(a, a).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return 2 * SIDE**3 / min(seconds)


def write_files(folder: Path) -> None:
    """A tokenizer of sub-words that knows an end of text, and the config."""
    corpus = load_corpus("embedded")
    fitted = BPETokenizer.fit(corpus.chunks("train"), VOCABULARY - 1)
    content = json.loads(fitted.json_text)
    end = {"id": fitted.vocab_size, "content": "<|endoftext|>", "special": True}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"] = [{**end, **plain}]
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(content))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))


def logged(log: str, name: str) -> list[float]:
    """What the tracker said under a name, in the order of steps."""
    return [float(found) for found in re.findall(rf'"{name}": ([\d.e+-]+)', log)]


def main() -> None:
    """Train, then say what it took."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_files(folder)
        rate = peak()
        words = [sys.executable, "-W", "ignore", "-m", "qkvflow", "levanter", "train"]
        here = {"PYTHONPATH": str(OUT.parents[1]), "MARIN_PREFIX": "marin", "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [*words, "--config", "run.yaml"],
            cwd=folder,
            env={**os.environ, **here},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    seconds = logged(done.stderr, "throughput/duration")
    done_a_second = 1e9 * statistics.median(logged(done.stderr, "throughput/gflops_per_second"))
    losses = logged(done.stderr, "train/loss")
    content = {
        "parameters": int(logged(done.stderr, "parameter_count")[0]),
        **{"steps": STEPS, "tokens_in_a_step": ROWS * LENGTH, "cores": os.cpu_count()},
        **{"first_loss": losses[0], "last_loss": losses[-1]},
        "seconds_of_a_step": statistics.median(seconds),
        **{
            "flops_per_second": done_a_second,
            "peak_flops_per_second": rate,
            "mfu": done_a_second / rate,
        },
        "peak_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
    }
    OUT.write_text(json.dumps(content, indent=1) + "\n")
    print(content)


if __name__ == "__main__":
    main()
