"""What docs/research_summary.md says with numbers."""

from qkvflow.experiments.gates import read_gates
from qkvflow.statistics import smallest_p_value
from tests.ledger import better_gates, equal
from tests.ledger.measured import (
    RESULTS,
    Sentence,
    above,
    ahead,
    arm,
    best_and_second,
    floor,
    in_windows,
    least_and_most,
    left_by_decay,
    moved_rates,
    nothing,
    pair,
    ratio,
    shrinks_from,
    swept,
    unpaired,
)

FOUR = ("standard", "tong_neuralode", "time_indexed_mlp", "time_indexed_ssm")

SENTENCES: list[Sentence] = [
    *better_gates.SENTENCES,
    *equal.SENTENCES,
    (
        "{:.3f} above `standard` ({:.3f} to {:.3f})",
        lambda: above("laptop", "shared", "standard"),
    ),
    (
        "{:.0%} of its parameters and the same number of operations",
        lambda: [ratio("laptop", "params", "shared", "standard")],
    ),
    (
        "`time_indexed_mlp` minus `shared` is {:+.4f} ({:+.4f} to {:+.4f})",
        lambda: above("laptop", "time_indexed_mlp", "shared"),
    ),
    (
        "Within the margin of 0.01, which was set beforehand and is {:.0%} of what sharing costs, they "
        "are equal by a test of this pair alone (p = {:.3f}), but not by one that is corrected for all "
        "fifteen pairs (p = {:.3f}; on the test split {:.3f} and {:.3f})",
        lambda: [
            0.01 / above("laptop", "shared", "standard")[0],
            *(
                pair("laptop", "time_indexed_mlp", "shared", split)[f"p_value_equivalence{corrected}"]
                for split in ("valid", "test")
                for corrected in ("", "_holm")
            ),
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
        "{:.3f} below it ({:.3f} to {:.3f}, without pairing {:.3f} to {:.3f}; on the test split "
        "{:.3f}, {:.3f} to {:.3f}), with {:.0%} of its operations",
        lambda: [
            *above("laptop", "time_indexed_mlp", "standard_narrow"),
            *unpaired("laptop", "time_indexed_mlp", "standard_narrow"),
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
        "Its lead was {:.3f} at step 1000 and {:.3f} at 2000, and shrank to the last step",
        lambda: [ahead("laptop", "time_indexed_ssm", "standard", step) for step in (1000, 2000)],
    ),
    (
        "{:.3f} below `standard` ({:.3f} to {:.3f})",
        lambda: above("laptop", "standard", "tong_neuralode"),
    ),
    (
        "its lead, {:.3f} at step 1500, shrinks from then on",
        lambda: [ahead("laptop", "tong_neuralode", "standard", 1500)],
    ),
    (
        "`time_indexed_ssm` is {:.3f} ahead of it at 1000, {:.3f} at 2000 and {:.3f} at the end, "
        "`tong_neuralode` {:.3f} at 1500, {:.3f} at 2000 and {:.3f} at the end",
        lambda: [
            ahead("laptop", name, "standard", step)
            for name, steps in (
                ("time_indexed_ssm", (1000, 2000, 3000)),
                ("tong_neuralode", (1500, 2000, 3000)),
            )
            for step in steps
        ],
    ),
    (
        "From step {} on each lead is smaller, in every seed, than 500 steps before",
        lambda: [
            max(
                shrinks_from("laptop", name, "standard", 500)
                for name in ("time_indexed_ssm", "tong_neuralode")
            )
        ],
    ),
    (
        "{:.1f} times its parameters",
        lambda: [ratio("laptop", "params", "tong_neuralode", "standard")],
    ),
    (
        "`time_indexed_ssm` is {:.3f} below `standard` ({:.3f} to {:.3f}), `tong_neuralode` {:.3f} "
        "above it ({:.3f} to {:.3f}), and between `standard` and `time_indexed_mlp`, which has {:.0%} "
        "of `standard`'s parameters",
        lambda: [
            *above("seeds", "standard", "time_indexed_ssm"),
            *above("seeds", "tong_neuralode", "standard"),
            ratio("seeds", "params", "time_indexed_mlp", "standard"),
        ],
    ),
    ("eight learning rates from 6.25e-5 to 8e-3", nothing),
    (
        "all four end below the trigrams ({:.3f}), and `time_indexed_ssm` ends below the 4-grams "
        "({:.3f})",
        lambda: [floor("seeds", order) for order in (3, 4)],
    ),
    (
        "Neighbours of the best rates are {:.2f} to {:.2f} worse",
        lambda: least_and_most(best_and_second("seeds", name) for name in FOUR),
    ),
    (
        "its lead over `standard` is {:.3f} at step 200, {:.3f} at 400 and {:.3f} at the end. It "
        "shrinks in the laptop setting as well: {:.3f} after as many characters, {:.3f} after six "
        "times as many",
        lambda: [
            ahead(experiment, "time_indexed_ssm", "standard", step)
            for experiment, steps in (("seeds", (200, 400, 1000)), ("laptop", (500, 3000)))
            for step in steps
        ],
    ),
    (
        "a difference below {:.2f} could have been missed. Their",
        lambda: [pair("seeds", "standard", "time_indexed_mlp")["detectable_difference"]],
    ),
    (
        "Its mean lead was {:.3f} at step 600 and has shrunk to {:.3f} at the end; in the laptop "
        "setting it is {:.3f} behind after as many characters",
        lambda: [
            ahead("seeds", "time_indexed_mlp", "standard", 600),
            ahead("seeds", "time_indexed_mlp", "standard", 1000),
            ahead("laptop", "standard", "time_indexed_mlp", 500),
        ],
    ),
    (
        "{:.3f} against {:.3f} after the 600 steps of the sweep (one seed)",
        lambda: [
            swept("laptop", "tong_neuralode", 5e-4),
            swept("laptop", "standard", 8e-3),
        ],
    ),
    (
        "the distance grows, from {:.3f} at step 400 to {:.3f} at the end",
        lambda: [ahead("seeds", "standard", "tong_neuralode", step) for step in (400, 1000)],
    ),
    (
        "as much as in the laptop setting ({:.3f} and {:.3f}, one standard deviation)",
        lambda: [arm("seeds", name)["loss_std"] for name in ("standard", "time_indexed_mlp")],
    ),
    (
        "Its runs scatter most ({:.3f}, one standard deviation)",
        lambda: [arm("seeds", "tong_neuralode")["loss_std"]],
    ),
    ("cannot go below p = {:.4f}", lambda: [smallest_p_value(5)]),
    ("{:.3f} nats on the same split, Witten-Bell", lambda: [floor("laptop", 5)]),
    (
        "in such windows 5-grams would be at {:.3f}, and the best of these models is {:.3f} above that",
        lambda: [
            in_windows(5, 128),
            min(arm("laptop", name)["loss_mean"] for name in ("time_indexed_ssm", "tong_neuralode"))
            - in_windows(5, 128),
        ],
    ),
    (
        "the networks that make these {:,} gates have {:,} parameters",
        lambda: [
            sum(g.size for g in read_gates(RESULTS / "laptop", "time_indexed_mlp")[0].values()),
            arm("laptop", "time_indexed_mlp")["time_network_params"],
        ],
    ),
    ("peak learning rates, 2.5e-4 to 1.6e-2", nothing),
    ("(*: at most 0.05)", nothing),
    ("equality within 0.01 nats", nothing),
    ("tests of equality within 0.01, corrected like the others", nothing),
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
        lambda: above("ablation", "shuffled_time", "true_time"),
    ),
    (
        "but not significantly ({:.3f}, {:.3f} to {:.3f}; five seeds could have missed {:.3f})",
        lambda: [
            *above("ablation", "constant_time", "true_time"),
            pair("ablation", "constant_time", "true_time")["detectable_difference"],
        ],
    ),
    (
        "With the true time the loss is {:.3f} above it ({:.3f} to {:.3f})",
        lambda: above("ablation", "true_time", "shared"),
    ),
    (
        "by a test of that pair alone (p = {:.3f}), not by one that is corrected for all pairs "
        "({:.3f})",
        lambda: [
            pair("ablation", "true_time", "shuffled_time")[f"p_value_equivalence{corrected}"]
            for corrected in ("", "_holm")
        ],
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
        "for {:,} steps, {:.0f} million characters",
        lambda: [(steps := arm("long", "standard")["steps"]), steps * 16 * 128 / 1e6],
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
        "It is 0.1 for all arms, and AdamW multiplies it by the learning rate: a weight without a "
        "gradient would keep {:.0%} of its size over a run at 8e-3, and {:.0%} at the 5e-4 of "
        "`tong_neuralode`, which is thus trained nearly without it; over the 600 steps of the sweep, "
        "{:.0%} at 8e-3",
        lambda: [
            left_by_decay(f"laptop/{path}.json")
            for path in (
                "runs/standard/seed-0",
                "runs/tong_neuralode/seed-0",
                "sweep/standard/lr-0.008",
            )
        ],
    ),
    (
        "it would keep {:.0%} at the 2e-3 of `standard` and {:.0%} at the 1.25e-4 of `tong_neuralode`",
        lambda: [
            left_by_decay(f"seeds/runs/{name}/seed-0.json") for name in ("standard", "tong_neuralode")
        ],
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
