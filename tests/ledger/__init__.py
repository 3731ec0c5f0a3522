"""What the documents say with numbers: every such sentence, and where its numbers are from."""

from qkvflow.models import MODELS
from qkvflow.statistics import smallest_p_value
from tests.ledger import reproduction, research_summary
from tests.ledger.measured import (
    Sentence,
    gains_of_pretraining,
    nothing,
    size,
    slopes,
)
from tests.ledger.speed import speed_rows

SENTENCES: dict[str, list[Sentence]] = {
    "README.md": [
        ("need Python 3.11 or newer", nothing),
        *(("| {:,} |", lambda model=name: size(model)) for name in MODELS),
    ],
    "API.md": [
        ("(about {:.1f}M parameters at hidden 256;", lambda: [size("time_indexed_mlp")[1] / 1e6]),
        ("{:.1f}M with `mlp_ratio=1`)", lambda: [size("time_indexed_mlp", mlp_ratio=1)[1] / 1e6]),
        ("`rotary_base` | 1e-5, 10000 |", nothing),
        ("1e-3, 1e-1 |", nothing),
        ("`adaptive_max_steps` | 1e-3, 1e-4, 256 |", nothing),
    ],
    "docs/analysis.md": [
        ("0.906, 0, -14.57 for the Lorenz system (`tests/analysis/test_lyapunov.py`)", nothing),
        *(
            (
                f"| `{model}` | {circuit.upper()} | {{}}| {{}}| {{}}|",
                lambda of=(model, circuit): slopes(*of),
            )
            for model in (
                "tong_neuralode",
                "standard",
                "standard_narrow",
                "time_indexed_mlp",
                "time_indexed_ssm",
            )
            for circuit in ("qk", "ov")
        ),
    ],
    "docs/experiments.md": [
        ("with five seeds it cannot go below p = {:.4f}", lambda: [smallest_p_value(5)]),
    ],
    "docs/finetuning.md": [
        ("`transformers` within 1e-4", nothing),
        ("ends below the one from scratch**, by {:.2f} to {:.2f} nats", gains_of_pretraining),
    ],
    "docs/models.md": [],
    "docs/reproduction.md": reproduction.SENTENCES,
    "docs/research_summary.md": research_summary.SENTENCES,
    "docs/speed.md": [
        *speed_rows(),
        ("The bound is 1.00.", nothing),
        ("**State-space part at length 2048**: bound 1.10.", nothing),
    ],
    "docs/training.md": [
        ("within 1e-5 (tested on four simulated ones)", nothing),
        ("(within 1e-4 over the first steps of a small model)", nothing),
    ],
}
