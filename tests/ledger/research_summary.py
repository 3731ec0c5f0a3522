"""What docs/research_summary.md says with numbers."""

from qkvflow.experiments.gates import read_gates
from qkvflow.experiments.statistics import smallest_p_value
from tests.ledger.measured import (
    RESULTS,
    Sentence,
    above,
    ahead,
    arm,
    closed_gates,
    floor,
    least_and_most,
    moved_rates,
    nothing,
    pair,
    ratio,
    swept,
)

PACES = ("slow", "slower", "slowest")

SENTENCES: list[Sentence] = [
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
        "Slower ones gain about {:.2f},",
        lambda: [
            arm("laptop", "time_indexed_mlp")["loss_mean"]
            - sum(arm("gap", f"{of}_time_network")["loss_mean"] for of in PACES) / len(PACES)
        ],
    ),
    (
        "over five other seeds, `shared` ends at {:.4f}, `time_indexed_mlp` at {:.4f} and `standard` "
        "at {:.4f}",
        lambda: [
            arm("laptop", name)["loss_mean"] for name in ("shared", "time_indexed_mlp", "standard")
        ],
    ),
    (
        "scatter by {:.3f} to {:.3f} (one standard deviation)",
        lambda: least_and_most(
            arm("laptop", name)["loss_std"] for name in ("shared", "time_indexed_mlp", "standard")
        ),
    ),
    (
        "of those of `mlp.down` {:.0%} are closed in the laptop setting, {:.0%} at a quarter of the "
        "rate and {:.0%} at a 64th",
        lambda: [
            closed_gates("laptop", "time_indexed_mlp", "mlp.down"),
            closed_gates("gap", "slow_time_network", "mlp.down"),
            closed_gates("gap", "slowest_time_network", "mlp.down"),
        ],
    ),
    (
        "the loss ({:.4f}, {:.4f}, {:.4f}) is below that of each of the five runs of "
        "`time_indexed_mlp`, of which the best ends at {:.4f}",
        lambda: [
            *(arm("gap", f"{of}_time_network")["loss_mean"] for of in PACES),
            min(arm("laptop", "time_indexed_mlp")["all_losses"]),
        ],
    ),
    ("change nothing ({:.4f})", lambda: [arm("gap", "gates_start_at_random")["loss_mean"]]),
    (
        "with gates on inputs as well as outputs, {:.4f}",
        lambda: [arm("gap", "slow_gates_on_both")["loss_mean"]],
    ),
    ("far fewer parameters: {:.4f}", lambda: [arm("gap", "slow_small_network")["loss_mean"]]),
    (
        "are what to confirm: {:.4f}, {:.0%} more parameters than `shared`, which ends at {:.4f}",
        lambda: [
            arm("gap", "slow_small_gates_on_both")["loss_mean"],
            ratio("gap", "params", "slow_small_gates_on_both", "shared") - 1,
            arm("gap", "shared")["loss_mean"],
        ],
    ),
    (
        "gates that have no bounds (1 + g in place of 2 sigmoid(g)) end at {:.4f}, and networks that "
        "are told time in frequencies up to 10 in place of 1000 at {:.4f}. Biases that depend on "
        "depth, too, bring it to {:.4f}",
        lambda: [
            arm("gap", f"slow_small_both_{name}")["loss_mean"]
            for name in ("linear", "smooth", "shifted")
        ],
    ),
    (
        "`shared` ends at {:.4f}, above its 4 layers. With gates it is {:.4f}",
        lambda: [
            arm("gap", f"{name}_twice_the_layers")["loss_mean"]
            for name in ("shared", "slow_small_both")
        ],
    ),
    (
        "of {:.0%} of the parameters of `shared`, and a third of its operations, ends at {:.4f}",
        lambda: [
            ratio("gap", "params", "standard_narrow", "shared"),
            arm("gap", "standard_narrow")["loss_mean"],
        ],
    ),
    (
        "rank 32 ends at {:.4f}, two sets of weights that every layer mixes in its own proportion, "
        "{:.1f} times the parameters of `shared`, at {:.4f}",
        lambda: [
            arm("gap", "slow_low_rank_32")["loss_mean"],
            ratio("gap", "params", "slow_two_bases", "shared"),
            arm("gap", "slow_two_bases")["loss_mean"],
        ],
    ),
    (
        "of the {:.2f} between `shared` and `standard`",
        lambda: above("laptop", "shared", "standard")[:1],
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
