"""What the documents say with numbers: every such sentence, and where its numbers are from.

By document, pairs of a template and a function that gives what goes into it, read from results/ or
computed. Numbers in a template itself are settings, or what others claimed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from qkvflow.experiments.gates import read_gates
from qkvflow.experiments.records import read_json
from qkvflow.experiments.statistics import smallest_p_value
from qkvflow.models import MODELS
from tests.measured import (
    RESULTS,
    above,
    ahead,
    arm,
    below_standard,
    bench,
    compression,
    first_version,
    first_version_p,
    floor,
    gains_of_pretraining,
    moved_rates,
    pair,
    ratio,
    size,
    slopes,
    swept,
)

Sentence = tuple[str, Callable[[], Sequence[Any]]]


def nothing() -> Sequence[Any]:
    """For a sentence whose numbers are all in its template."""
    return ()


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


REPRODUCTION: list[Sentence] = [
    *(
        (quoted, nothing)
        for quoted in (
            "308.5M,",
            "51.5M,",
            "| 0.7M and 0.96M |",
            "| 4.9M and 9.4M |",
            "10.73 to 24.57",
            "10,240",
            "One learning rate, 3e-4, for all models.",
            "A learning rate of 3e-4 serves all models",
        )
    ),
    ("{:,} | no: it was not a transformer |", lambda: size("standard")),
    ("{:,} | yes, the first |", lambda: size("tong_neuralode")),
    ("{:,} | nearly: with the usual MLP", lambda: size("time_indexed_mlp")),
    ("{:,} | no: it is smaller |", lambda: size("time_indexed_ssm")),
    (
        "| 430 times, in another place 645 | {:.2f} times |",
        lambda: [compression("time_indexed_mlp")],
    ),
    (
        "| 63 times, in another place 66 | {:.2f} times |",
        lambda: [compression("time_indexed_ssm")],
    ),
    ("| 2.367 ± 0.022 | {:.3f} ± {:.3f} |", lambda: first_version("standard")),
    ("| 2.336 ± 0.018 | {:.3f} ± {:.3f} |", lambda: first_version("tong_neuralode")),
    ("| 2.231 ± 0.025 | {:.3f} ± {:.3f} |", lambda: first_version("time_indexed_mlp")),
    ("| 2.147 ± 0.124 | {:.3f} ± {:.3f} |", lambda: first_version("time_indexed_ssm")),
    (
        "`tong_neuralode` is better than `standard` | p < 0.05 | its test: p = {:.4f}; Welch with "
        "Holm: {:.3f} |",
        lambda: first_version_p("standard", "tong_neuralode"),
    ),
    (
        "`time_indexed_mlp` is better than `standard` | p < 0.05 | its test: p = {:.5f}; Welch with "
        "Holm: {:.4f} |",
        lambda: first_version_p("standard", "time_indexed_mlp"),
    ),
    (
        "`time_indexed_ssm` is better than `standard` | p < 0.05 | its test: p = {:.4f}; Welch with "
        "Holm: {:.3f} |",
        lambda: first_version_p("standard", "time_indexed_ssm"),
    ),
    (
        "| the best of the four | its test: p = {:.3f}; Welch with Holm: {:.3f} |",
        lambda: first_version_p("time_indexed_mlp", "time_indexed_ssm"),
    ),
    (
        "table of bigrams reaches, {:.3f} nats (valid, Witten-Bell)",
        lambda: [floor("laptop", 2)],
    ),
    (
        "6.5% lower, in another place 9.3% | {:.3f} higher ({:.3f} to {:.3f})",
        lambda: above("laptop", "time_indexed_mlp", "standard"),
    ),
    (
        "4.5% lower | {:.3f} higher ({:.3f} to {:.3f})",
        lambda: above("laptop", "time_indexed_mlp", "tong_neuralode"),
    ),
    (
        "9.3% below `standard`, in another place 22% | {:.3f} below ({:.3f} to {:.3f}), which is "
        "{:.1f}%",
        lambda: below_standard("time_indexed_ssm"),
    ),
    (
        "2.336 against 2.367 | {:.3f} lower ({:.3f} to {:.3f}), which is {:.1f}%",
        lambda: below_standard("tong_neuralode"),
    ),
    (
        "yes, with {:.1f} times the parameters",
        lambda: [ratio("laptop", "params", "tong_neuralode", "standard")],
    ),
    (
        "`standard` at the size of `time_indexed_mlp` is {:.3f} below it ({:.3f} to {:.3f})",
        lambda: above("laptop", "time_indexed_mlp", "standard_narrow"),
    ),
    (
        "its best learning rate is {:.0f} times lower than `standard`'s, and from 2e-3 on it stays at "
        "{:.2f} nats or above",
        lambda: [
            ratio("laptop", "learning_rate", "standard", "tong_neuralode"),
            min(swept("laptop", "tong_neuralode", rate) for rate in (2e-3, 4e-3, 8e-3)),
        ],
    ),
    (
        "`standard` is at {:.2f} nats with 2.5e-4 and at {:.2f} with 8e-3",
        lambda: [swept("laptop", "standard", rate) for rate in (2.5e-4, 8e-3)],
    ),
    (
        "5.47% lower, in their own run 0.55%, of one seed | {:.3f} lower ({:.3f} to {:.3f}), which is "
        "{:.1f}%",
        lambda: [
            *above("ablation", "constant_time", "true_time"),
            100
            * above("ablation", "constant_time", "true_time")[0]
            / arm("ablation", "constant_time")["loss_mean"],
        ],
    ),
    (
        "`tong_neuralode` ends {:.3f} below `time_indexed_mlp` ({:.3f} to {:.3f}), with {:.0f} times "
        "its parameters",
        lambda: [
            *above("laptop", "time_indexed_mlp", "tong_neuralode"),
            ratio("laptop", "params", "tong_neuralode", "time_indexed_mlp"),
        ],
    ),
    (
        "ends {:.3f} above `time_indexed_mlp` ({:.3f} to {:.3f})",
        lambda: above("ablation", "hybrid", "true_time"),
    ),
    (
        "7.2 times, in another place 8 times | it takes {:.2f} of its time",
        lambda: bench("step-small", "time_indexed_mlp", "standard"),
    ),
    (
        "8.4 times, in another place 7 times | {:.2f} times",
        lambda: bench("ssm-short", "time_indexed_ssm", "time_indexed_mlp"),
    ),
    (
        "3.6 times | it takes {:.2f} times as long at 1024 tokens",
        lambda: bench("tong-small", "tong_neuralode", "standard"),
    ),
    (
        "{:.3f} nats below `standard` in the laptop setting, with {:.1f} times the parameters",
        lambda: [
            below_standard("tong_neuralode")[0],
            ratio("laptop", "params", "tong_neuralode", "standard"),
        ],
    ),
]
"""docs/reproduction.md; what comes before a bar is what was claimed."""

RESEARCH: list[Sentence] = [
    (
        "{:.3f} above `standard` ({:.3f} to {:.3f})",
        lambda: above("laptop", "shared", "standard"),
    ),
    (
        "{:.0%} of its parameters and the same number of operations",
        lambda: [ratio("laptop", "params", "shared", "standard")],
    ),
    (
        "differ by {:+.4f} ({:+.4f} to {:+.4f})",
        lambda: above("laptop", "time_indexed_mlp", "shared"),
    ),
    (
        "Within the margin of 0.01, which was set beforehand, they are equal by a test of this pair "
        "alone (p = {:.3f}, on the test split p = {:.3f})",
        lambda: [
            pair("laptop", "time_indexed_mlp", "shared", split)["p_value_equivalence"]
            for split in ("valid", "test")
        ],
    ),
    (
        "{:.0%} more parameters",
        lambda: [ratio("laptop", "params", "time_indexed_mlp", "shared") - 1],
    ),
    (
        "from 128 to {} so that it has the size of `time_indexed_mlp` ({:,} and {:,} parameters)",
        lambda: [
            arm("laptop", "standard_narrow")["hidden_dim"],
            arm("laptop", "standard_narrow")["params"],
            arm("laptop", "time_indexed_mlp")["params"],
        ],
    ),
    (
        "{:.3f} below it ({:.3f} to {:.3f}; on the test split {:.3f}, {:.3f} to {:.3f}), with {:.0%} "
        "of its operations",
        lambda: [
            *above("laptop", "time_indexed_mlp", "standard_narrow"),
            *above("laptop", "time_indexed_mlp", "standard_narrow", "test"),
            ratio("laptop", "training_flops", "standard_narrow", "time_indexed_mlp"),
        ],
    ),
    (
        "{:.3f} below `standard` ({:.3f} to {:.3f}), with {:.0%} of its parameters and {:.0%} more "
        "operations",
        lambda: [
            *above("laptop", "standard", "time_indexed_ssm"),
            ratio("laptop", "params", "time_indexed_ssm", "standard"),
            ratio("laptop", "training_flops", "time_indexed_ssm", "standard") - 1,
        ],
    ),
    (
        "{:.3f} below `standard` ({:.3f} to {:.3f})",
        lambda: above("laptop", "standard", "tong_neuralode"),
    ),
    (
        "{:.1f} times its parameters",
        lambda: [ratio("laptop", "params", "tong_neuralode", "standard")],
    ),
    ("cannot go below p = {:.4f}", lambda: [smallest_p_value(5)]),
    ("{:.3f} nats on the same split, Witten-Bell", lambda: [floor("laptop", 5)]),
    (
        "the networks that make these {:,} gates have {:,} parameters",
        lambda: [
            sum(g.size for g in read_gates(RESULTS / "laptop", "time_indexed_mlp")[0].values()),
            arm("laptop", "time_indexed_mlp")["time_network_params"],
        ],
    ),
    ("peak learning rates, 2.5e-4 to 1.6e-2", nothing),
    ("(*: below 0.05)", nothing),
    ("equivalence within 0.01 nats", nothing),
    ("tests of equality within 0.01, not corrected", nothing),
    (
        "`time_indexed_mlp` is {:.3f} ahead of it at 750, {:.3f} at 1000 and {:.3f} at 1750",
        lambda: [ahead("laptop", "time_indexed_mlp", "shared", step) for step in (750, 1000, 1750)],
    ),
    (
        "then loses {:.2f} to it",
        lambda: [ahead("laptop", "standard", "time_indexed_mlp", 3000)],
    ),
    (
        "`standard_narrow` has {:.0%} fewer parameters in all",
        lambda: [1 - ratio("laptop", "params", "standard_narrow", "time_indexed_mlp")],
    ),
    (
        "where they end with the true one ({:+.4f}, {:+.4f} to {:+.4f})",
        lambda: above("ablation", "true_time", "shuffled_time"),
    ),
    (
        "not significantly above it ({:.3f}, {:.3f} to {:.3f})",
        lambda: above("ablation", "constant_time", "true_time"),
    ),
    (
        "With the true time the loss is {:.3f} above it ({:.3f} to {:.3f})",
        lambda: above("ablation", "true_time", "shared"),
    ),
    (
        "by a test of that pair alone (p = {:.3f})",
        lambda: [pair("ablation", "true_time", "shuffled_time")["p_value_equivalence"]],
    ),
    (
        "are {:.3f} and {:.3f} above the true time, neither significantly",
        lambda: [above("ablation", name, "true_time")[0] for name in ("constant_time", "layer_vector")],
    ),
    (
        "a difference below {:.2f} could have been missed",
        lambda: [
            min(
                pair("ablation", name, "true_time")["detectable_difference"]
                for name in ("constant_time", "layer_vector")
            )
        ],
    ),
    (
        "Euler steps cost {:.3f}** ({:.3f} to {:.3f})",
        lambda: above("ablation", "hybrid", "true_time"),
    ),
    (
        "`standard` passes the table of 6-grams ({:.3f} against {:.3f}) and `time_indexed_mlp` that of "
        "5-grams ({:.3f}), {:.3f} behind",
        lambda: [
            arm("long", "standard")["loss_mean"],
            floor("long", 6),
            arm("long", "time_indexed_mlp")["loss_mean"],
            arm("long", "time_indexed_mlp")["loss_mean"] - arm("long", "standard")["loss_mean"],
        ],
    ),
    (
        "for {:,} steps, 37 million characters",
        lambda: [arm("long", "standard")["steps"]],
    ),
    (
        "They end at {:.3f} and {:.3f}.",
        lambda: [arm("long", name)["loss_mean"] for name in ("standard", "time_indexed_mlp")],
    ),
    (
        "by {:.2f} when ten thousand are done and by {:.3f} at the end",
        lambda: [
            ahead("long", "standard", "time_indexed_mlp", 10_000),
            arm("long", "time_indexed_mlp")["loss_mean"] - arm("long", "standard")["loss_mean"],
        ],
    ),
    (
        "in runs of that length, is {:.3f}.",
        lambda: above("laptop", "time_indexed_mlp", "standard")[:1],
    ),
    (
        "From 300 steps to 600 the best rate of three arms moved from {} to {},",
        lambda: [
            f"{rate:.0e}".replace("e-0", "e-")
            for rate in moved_rates(("standard", "shared", "time_indexed_ssm"))
        ],
    ),
    (
        "at 8e-3 `time_indexed_mlp` is at {:.4f} in one and {:.4f} in the other, `shared` at {:.4f} "
        "and {:.4f}",
        lambda: [
            swept(experiment, name, 8e-3)
            for name, other in (("time_indexed_mlp", "true_time"), ("shared", "shared"))
            for experiment, name in (("laptop", name), ("ablation", other))
        ],
    ),
    (
        "{:.3f} ahead of `shared` (one seed)",
        lambda: [
            swept("laptop", "shared", 8e-3) - swept("laptop", "time_indexed_mlp", 8e-3),
        ],
    ),
]
"""docs/research_summary.md."""

SENTENCES: dict[str, list[Sentence]] = {
    "README.md": [
        ("need Python 3.11 or newer", nothing),
        *(("| {:,} |", lambda model=name: size(model)) for name in MODELS),
    ],
    "API.md": [
        ("(about {:.1f}M parameters at hidden 256;", lambda: [size("time_indexed_mlp")[1] / 1e6]),
        ("0.7M with `mlp_ratio=1`)", nothing),
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
    "docs/reproduction.md": REPRODUCTION,
    "docs/research_summary.md": RESEARCH,
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
