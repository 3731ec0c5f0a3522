"""What docs/reproduction.md says with numbers; what comes before a bar is what was claimed."""

from tests.ledger.measured import (
    Sentence,
    above,
    arm,
    below,
    bench,
    compression,
    first_version,
    first_version_p,
    floor,
    least_and_most,
    nothing,
    pair,
    rates_near_the_best,
    ratio,
    size,
    swept,
    unpaired,
)

FOUR = ("standard", "tong_neuralode", "time_indexed_mlp", "time_indexed_ssm")

SENTENCES: list[Sentence] = [
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
    ("| 2.15 to 2.37 nats |", nothing),
    (
        "{:.2f} to {:.2f} nats, all below the trigrams ({:.3f}) | {:.2f} to {:.2f} |",
        lambda: [
            *least_and_most(arm("seeds", name)["loss_mean"] for name in FOUR),
            floor("seeds", 3),
            *least_and_most(arm("laptop", name)["loss_mean"] for name in FOUR),
        ],
    ),
    (
        "6.5% lower, in another place 9.3% | {:.3f} lower ({:.3f} to {:.3f}), which is {:.1f}% | "
        "{:.3f} higher ({:.3f} to {:.3f})",
        lambda: [
            *below("seeds", "time_indexed_mlp", "standard"),
            *above("laptop", "time_indexed_mlp", "standard"),
        ],
    ),
    (
        "4.5% lower | {:.3f} lower ({:.3f} to {:.3f}), which is {:.1f}% | {:.3f} higher ({:.3f} to "
        "{:.3f})",
        lambda: [
            *below("seeds", "time_indexed_mlp", "tong_neuralode"),
            *above("laptop", "time_indexed_mlp", "tong_neuralode"),
        ],
    ),
    (
        "9.3% below `standard`, in another place 22% | {:.3f} below ({:.3f} to {:.3f}), which is "
        "{:.1f}% | {:.3f} below ({:.3f} to {:.3f}), which is {:.1f}%",
        lambda: [
            *below("seeds", "time_indexed_ssm", "standard"),
            *below("laptop", "time_indexed_ssm", "standard"),
        ],
    ),
    (
        "2.336 against 2.367 | {:.3f} higher ({:.3f} to {:.3f}) | {:.3f} lower ({:.3f} to {:.3f}), "
        "which is {:.1f}%",
        lambda: [
            *above("seeds", "tong_neuralode", "standard"),
            *below("laptop", "tong_neuralode", "standard"),
        ],
    ),
    (
        "with {:.1f} and {:.1f} times the parameters",
        lambda: [
            ratio(experiment, "params", "tong_neuralode", "standard")
            for experiment in ("seeds", "laptop")
        ],
    ),
    (
        "`standard` at the size of `time_indexed_mlp` is {:.3f} below it ({:.3f} to {:.3f}; without "
        "pairing {:.3f} to {:.3f})",
        lambda: [
            *above("laptop", "time_indexed_mlp", "standard_narrow"),
            *unpaired("laptop", "time_indexed_mlp", "standard_narrow"),
        ],
    ),
    (
        "its best learning rate is {:.0f} times lower than `standard`'s, and from 1e-3 on it stays at "
        "{:.2f} nats or above after 600 steps; at its best rate it ends above `standard` | {:.0f} "
        "times lower, and from 2e-3 on at {:.2f} or above or failed",
        lambda: [
            ratio("seeds", "learning_rate", "standard", "tong_neuralode"),
            min(swept("seeds", "tong_neuralode", rate) for rate in (1e-3, 2e-3, 4e-3, 8e-3)),
            ratio("laptop", "learning_rate", "standard", "tong_neuralode"),
            min(swept("laptop", "tong_neuralode", rate) for rate in (2e-3, 4e-3, 8e-3)),
        ],
    ),
    (
        "after 600 steps `standard` is at {:.2f} nats with 2.5e-4 and at {:.2f} with 2e-3 | at {:.2f} "
        "with 2.5e-4 and at {:.2f} with 8e-3",
        lambda: [
            swept(experiment, "standard", rate)
            for experiment, best in (("seeds", 2e-3), ("laptop", 8e-3))
            for rate in (2.5e-4, best)
        ],
    ),
    (
        "5.47% lower, in their own run 0.55%, of one seed | {:.3f} lower ({:.3f} to {:.3f}), which is "
        "{:.1f}%; with slower gates on both sides, over 3000 steps, {:.3f} lower ({:.3f} to {:.3f};",
        lambda: [
            *below("ablation", "true_time", "constant_time"),
            *above("gates", "slow_small_both_constant", "slow_small_gates_on_both"),
        ],
    ),
    (
        "p is {:.3f} on valid and {:.3f} on test, corrected",
        lambda: [
            pair("gates", "slow_small_both_constant", "slow_small_gates_on_both", split)["p_value_holm"]
            for split in ("valid", "test")
        ],
    ),
    (
        "within 0.1 nats of the best lie {} rates of theirs and {} of `standard`'s, in both settings",
        lambda: [
            rates_near_the_best(("seeds", "laptop"), name, 0.1)
            for name in ("tong_neuralode", "standard")
        ],
    ),
    (
        "`tong_neuralode` ends {:.3f} below `time_indexed_mlp` in the laptop setting, with {:.0f} "
        "times its parameters, and {:.3f} above it in the first version's, with {:.0f} times",
        lambda: [
            above("laptop", "time_indexed_mlp", "tong_neuralode")[0],
            ratio("laptop", "params", "tong_neuralode", "time_indexed_mlp"),
            above("seeds", "tong_neuralode", "time_indexed_mlp")[0],
            ratio("seeds", "params", "tong_neuralode", "time_indexed_mlp"),
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
        "64.3 against 55.3 ms a step, in another place 1.15 times as fast | in runs that did not take "
        "turns, {:.0f} against {:.0f} ms in the first version's setting, {:.0f} against {:.0f} in the "
        "laptop setting |",
        lambda: [
            arm(experiment, name)["speed_median"]
            for experiment in ("seeds", "laptop")
            for name in ("time_indexed_ssm", "standard")
        ],
    ),
    (
        "3.6 times | it takes {:.2f} times as long at 1024 tokens",
        lambda: bench("tong-small", "tong_neuralode", "standard"),
    ),
    (
        "{:.3f} nats below `standard` in the laptop setting, {:.3f} above it in the first version's, "
        "with {:.1f} and {:.1f} times the parameters",
        lambda: [
            above("laptop", "standard", "tong_neuralode")[0],
            above("seeds", "tong_neuralode", "standard")[0],
            *(
                ratio(experiment, "params", "tong_neuralode", "standard")
                for experiment in ("laptop", "seeds")
            ),
        ],
    ),
    (
        "at equal operations a narrower `standard` ends {:.3f} below it ({:.3f} to {:.3f};",
        lambda: above("laptop-flops", "time_indexed_ssm", "standard_narrow"),
    ),
    (
        "in the former {:.3f} below it at equal operations and {:.3f} above it at equal parameters",
        lambda: [
            above("laptop-flops", "standard", "tong_neuralode")[0],
            above("laptop-parameters", "tong_neuralode", "standard")[0],
        ],
    ),
]
