"""What the documents say with numbers: every such sentence, and where its numbers are from.

By document, pairs of a template and a function that gives what goes into it, read from results/ or
computed. Numbers in a template itself are settings, or what others claimed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from qkvflow.config import Gpt2Config
from qkvflow.experiments.records import read_json
from qkvflow.experiments.statistics import smallest_p_value
from qkvflow.models import MODELS, build_model, count_parameters

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
Sentence = tuple[str, Callable[[], Sequence[Any]]]


def nothing() -> Sequence[Any]:
    """For a sentence whose numbers are all in its template."""
    return ()


def size(model: str) -> tuple[int, int]:
    """Parameters at the default config, without the table of positions and with it."""
    shapes = eqx.filter_eval_shape(build_model, model, Gpt2Config(), key=jax.random.key(0))
    total = count_parameters(shapes).total
    return total - shapes.transformer.wpe.weight.size, total


def slopes(model: str, circuit: str) -> list[str]:
    """How a circuit grows with depth in the pretrained models, on one text and on the other."""
    found = read_json(RESULTS / "finetune" / "pretrain" / "magnitude_over_depth.json")
    ends = [found[f"{text} {model}"][circuit]["end"] for text in ("embedded", "wikitext-2")]
    return [f"{end['mean']:+.2f} +- {end['ci95']:.2f}" for end in ends]


def gains_of_pretraining() -> tuple[float, float]:
    """The least and the largest gain of an adapted model over one from scratch, at 6 layers or more."""
    gains = [
        arms[f"{name.rsplit('-', 1)[0]}-scratch"][depth]["mean"] - row["mean"]
        for arms in read_json(RESULTS / "finetune" / "summary.json")["losses"].values()
        for name, rows in arms.items()
        for depth, row in rows.items()
        if int(depth) >= 6 and not name.endswith("-scratch")
    ]
    return min(gains), max(gains)


def speed_rows() -> list[Sentence]:
    """The tables of docs/speed.md."""
    record = read_json(RESULTS / "bench.json")
    rows = [f"answers in {record['once']['help_seconds']:.2f} s"]
    for contest in record["contests"].values():
        for finding in contest["findings"]:
            if finding["at_most"] is not None:
                low, high = finding["quartiles"]
                rows.append(
                    f"| {contest['title']} | `{finding['name']}` / {finding['against']} | "
                    f"{finding['at_most']:.2f} | {finding['ratio']:.2f} ({low:.2f} to {high:.2f}) |"
                )
    for name, seconds in record["once"]["compile_seconds"].items():
        streams = {depth: of["streams"] for depth, of in record["once"]["memory"][name]["full"].items()}
        a_layer = (streams["48"] - streams["12"]) / 36
        rows.append(f"| `{name}` | {seconds['6']:.1f} s | {seconds['48']:.1f} s | {a_layer:.2f} |")
    for axis, models in record["growth"].items():
        exponents = " | ".join(f"n^{growth['exponent']:.2f}" for growth in models.values())
        values = next(iter(models.values()))["values"]
        rows.append(f"| {axis}, {values[0]} to {values[-1]} | {exponents} |")
    shares = read_json(RESULTS / "step_parts.json")
    rows += [
        f" | {share:.2f} | {shares['large'][part]:.2f} |" for part, share in shares["small"].items()
    ]
    return [(row, nothing) for row in rows]


SENTENCES: dict[str, list[Sentence]] = {
    "README.md": [
        ("need Python 3.11 or newer", nothing),
        *(("| {:,} |", lambda model=name: size(model)) for name in MODELS),
    ],
    "API.md": [
        ("(about {:.1f}M parameters at hidden 256;", lambda: [size("time_indexed_mlp")[1] / 1e6]),
        ("0.7M with `mlp_ratio=1`)", nothing),
    ],
    "docs/analysis.md": [
        ("0.906, 0, -14.57 for the Lorenz system (`tests/analysis/test_lyapunov.py`)", nothing),
        ("| `tong_neuralode` | QK | {} | {} |", lambda: slopes("tong_neuralode", "qk")),
        ("| `tong_neuralode` | OV | {} | {} |", lambda: slopes("tong_neuralode", "ov")),
        ("| `standard` | QK | {} | {} |", lambda: slopes("standard", "qk")),
        ("| `standard` | OV | {} | {} |", lambda: slopes("standard", "ov")),
    ],
    "docs/experiments.md": [
        ("with five seeds it cannot go below p = {:.4f}", lambda: [smallest_p_value(5)]),
    ],
    "docs/finetuning.md": [
        ("ends below the one from scratch**, by {:.2f} to {:.2f} nats", gains_of_pretraining),
    ],
    "docs/models.md": [],
    "docs/speed.md": [
        *speed_rows(),
        ("The bound is 1.00.", nothing),
        ("**State-space part at length 2048**: bound 1.10.", nothing),
    ],
    "docs/training.md": [],
}
