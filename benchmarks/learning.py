"""Three small models against n-grams on the text that Python carries with it: curves of the loss.

Run with `python benchmarks/learning.py`; takes about twenty minutes on two cores, prints a table and
writes results/learning.json. One seed: it shows that the models learn, not which is the better one.
"""

import json
import sys
import tempfile
from pathlib import Path

from qkvflow.cli.main import main as qkvflow
from qkvflow.data import NGramModel, load_corpus, make_tokenizer
from qkvflow.train import read_metrics

ROOT = Path(__file__).parent.parent
RESULTS, CONFIG = ROOT / "results", ROOT / "configs" / "tiny.yaml"
DATA, ORDER = "embedded", 6
MODELS = ("standard", "time_indexed_mlp", "time_indexed_ssm")
OPTIONS = """
--steps 1500 --batch-size 16 --length 128 --eval-every 100 --save-every 500
--eval-tokens 65536 --architecture.hidden-dim 128 --optimizer.learning-rate 3e-3 --optimizer.warmup 100
"""
POINT = ("step", "tokens", "seconds", "flops", "loss")


def ngram_losses(data, order):
    """Nats a character on the valid split of n-grams of order 1, 2, ... of the train split."""
    corpus = load_corpus(data)
    tokenizer = make_tokenizer("char", corpus)
    train, valid = (tokenizer.encode("".join(corpus.chunks(split))) for split in ("train", "valid"))
    model = NGramModel.fit(train, vocab_size=tokenizer.vocab_size, order=order)
    return model.nats_by_order(valid)


def curve(model, directory):
    """The looks at the valid split, and at the end the whole of it."""
    options = ["--config", str(CONFIG), *OPTIONS.split(), "--data", DATA, "--out", str(directory)]
    if qkvflow(["train", "--model", model, *options]):
        sys.exit(f"{model} did not learn.")
    records = read_metrics(directory / "metrics.jsonl")
    looks = [record for record in records if record["kind"] in ("valid", "final")]
    return [{name: look[name] for name in POINT} for look in looks]


def main(out=RESULTS):
    """Train the three models one after the other."""
    baselines = {str(i): loss for i, loss in enumerate(ngram_losses(DATA, ORDER), start=1)}
    with tempfile.TemporaryDirectory() as directory:
        curves = {model: curve(model, Path(directory) / model) for model in MODELS}
    for order, loss in baselines.items():
        print(f"n-gram of order {order}: {loss:.3f} nats/character")
    for model, points in curves.items():
        print(f"{model}: {points[-1]['loss']:.3f} after {points[-1]['step']} steps")
    corpus = load_corpus(DATA)
    record = {
        "python": sys.version.split()[0],
        "corpus_digest": corpus.digest,
        "options": " ".join(["--config configs/tiny.yaml", *OPTIONS.split()]),
        "ngrams": baselines,
        "curves": curves,
    }
    (out / "learning.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
