"""How many basis matrices over depth a model needs: the error of `into_basis` over their number.

Run with `python benchmarks/depth_basis.py`; takes about ten minutes, prints a table and writes
results/depth_basis.json and results/depth_basis.png. Three models: a GPT-2 of the published shape with
random weights, for which nothing can be saved, and `standard` and `tong_neuralode` after a little
training on the text that Python carries with it, whose loss with so many matrices is measured, too.
"""

import json
import sys
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from rich.progress import track

from qkvflow.config import Gpt2Config, OptimizerConfig, RunConfig
from qkvflow.models import StandardLM, depth_spectra, into_basis
from qkvflow.report.figures import appearance, figure, line_style, looks
from qkvflow.train import evaluate, load_model, train
from qkvflow.train.resume import open_data

RESULTS = Path(__file__).parent.parent / "results"
TRAINED = ("standard", "tong_neuralode")
LAYERS = 12
TOKENS = 16_384
DATA, STEPS = "embedded", 400
HEADS = 12
"""Of GPT-2, 64 wide each."""


def trained_run(model):
    """A little training of a model of twelve layers."""
    return RunConfig(
        model=model,
        data=DATA,
        tokenizer="byte",
        steps=STEPS,
        batch_size=16,
        length=64,
        eval_every=STEPS // 2,
        save_every=STEPS,
        architecture=Gpt2Config(
            hidden_dim=64, num_heads=4, num_layers=LAYERS, time_embed_dim=8, sinusoidal_dim=8
        ),
        optimizer=OptimizerConfig(learning_rate=3e-3),
    )


def random_gpt2():
    """GPT-2 of 124 million parameters, its matrices drawn as at the start of training."""
    config = Gpt2Config(
        num_layers=LAYERS,
        hidden_dim=64 * HEADS,
        num_heads=HEADS,
        vocab_size=50257,
        max_position_embeddings=1024,
        tie_embeddings=True,
    )
    return eqx.filter_jit(StandardLM.init)(config, key=jax.random.key(0))


def errors(model):
    """Relative error of every matrix for 0, 1, ... basis matrices, by name; and of all together."""
    squares = {
        name: np.square(values) for name, values in depth_spectra(model).items() if "norm" not in name
    }
    squares["all matrices"] = sum(squares.values())
    return {
        name: [float(np.sqrt(values[count:].sum() / values.sum())) for count in range(LAYERS + 1)]
        for name, values in squares.items()
    }


def losses(model, run):
    """The loss on a part of the valid split for 1, 2, ... basis matrices; last the model's own."""
    split = open_data(run)["valid"]
    models = [into_basis(model, count) for count in range(1, LAYERS + 1)]
    return [
        evaluate(each, split, length=run.length, batch_size=32, tokens=TOKENS).loss
        for each in track([*models, model], run.model)
    ]


def trained(name, directory):
    """Errors and losses of a model that is trained now."""
    run = trained_run(name)
    train(run, directory)
    model = load_model(directory)
    *by_count, own = losses(model, run)
    return {"errors": errors(model), "losses": by_count, "own_loss": own}


def draw(record, path):
    """The error of all matrices together over their number, one line a model."""
    with figure([path], 6.4, 4.0) as axes:
        models = [name.removesuffix(", trained") for name in record["models"]]
        for i, (name, found) in zip(looks(models).values(), record["models"].items()):
            look = {**appearance(i), "linestyle": line_style(i), "markersize": 4}
            axes.plot(found["errors"]["all matrices"], label=name, **look)
        axes.set_xlabel(f"basis matrices over the depth of {LAYERS} layers")
        axes.set_ylabel("relative error of the weights (Frobenius)")
        axes.legend(fontsize=8)


def main(out=RESULTS):
    """Decompose the three models."""
    found = {"GPT-2, random weights": {"errors": errors(random_gpt2())}}
    with tempfile.TemporaryDirectory() as directory:
        for name in TRAINED:
            found[f"{name}, trained"] = trained(name, Path(directory) / name)
    for name, one in found.items():
        print(f"{name}: {' '.join(f'{error:.3f}' for error in one['errors']['all matrices'])}")
        print(f"  loss {' '.join(f'{loss:.3f}' for loss in one.get('losses', []))}")
    record = {"python": sys.version.split()[0], "layers": LAYERS, "tokens": TOKENS, "models": found}
    (out / "depth_basis.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(record, out / "depth_basis.png")


if __name__ == "__main__":
    main()
