"""What docs/research_summary.md says with numbers of the search for better gates, and of its test."""

from tests.ledger.measured import (
    Sentence,
    above,
    arm,
    between_runs,
    gates,
    least_and_most,
    pair,
    ratio,
    unpaired,
)

DEPTH = ("slow_small_both_constant", "slow_small_gates_on_both")
PACES = ("slow", "slower", "slowest")


def corrected(first: str, second: str) -> list[float]:
    """Pairs of arms that two of them are corrected for, and p on both splits."""
    valid, test = (pair("gates", first, second, split) for split in ("valid", "test"))
    return [valid["comparisons_in_family"], valid["p_value_holm"], test["p_value_holm"]]


SENTENCES: list[Sentence] = [
    (
        "over five other seeds, `shared` ends at {:.4f}, `time_indexed_mlp` at {:.4f} and `standard` "
        "at {:.4f}",
        lambda: [
            arm("laptop", name)["loss_mean"] for name in ("shared", "time_indexed_mlp", "standard")
        ],
    ),
    (
        "scatter by {:.3f} to {:.3f} (one standard deviation), so that two runs of `time_indexed_mlp` "
        "may lie {:.3f} apart",
        lambda: [
            *least_and_most(
                arm("laptop", name)["loss_std"] for name in ("shared", "time_indexed_mlp", "standard")
            ),
            between_runs("laptop", "time_indexed_mlp"),
        ],
    ),
    (
        "it ends at {:.4f}, lower than in each of its five other runs (the best of which ends at "
        "{:.4f}), and {:.3f} below `shared`",
        lambda: [
            arm("gap", "true_time")["loss_mean"],
            min(arm("laptop", "time_indexed_mlp")["all_losses"]),
            arm("gap", "shared")["loss_mean"] - arm("gap", "true_time")["loss_mean"],
        ],
    ),
    (
        "of the gates of `mlp.down` in all layers {:.0%} are closed on this seed, {:.0%} at a quarter "
        "of the rate and {:.0%} at a 64th",
        lambda: [
            gates("gap", name)["mlp.down"].closed
            for name in ("true_time", "slow_time_network", "slowest_time_network")
        ],
    ),
    (
        "at the three lower rates ({:.4f}, {:.4f}, {:.4f}) are {:.3f} to {:.3f} lower",
        lambda: [
            *(losses := [arm("gap", f"{of}_time_network")["loss_mean"] for of in PACES]),
            *least_and_most(arm("gap", "true_time")["loss_mean"] - loss for loss in losses),
        ],
    ),
    (
        "(by {:.0%} to {:.0%} of their size), and the run ends {:.3f} below `shared` all the same",
        lambda: [
            *least_and_most(use.over_depth for use in gates("gap", "slowest_time_network").values()),
            arm("gap", "shared")["loss_mean"] - arm("gap", "slowest_time_network")["loss_mean"],
        ],
    ),
    ("starts {:.1f} times as large", lambda: [8**0.5]),
    (
        "end {:.3f} higher ({:.4f})",
        lambda: [
            (loss := arm("gap", "gates_start_at_random")["loss_mean"])
            - arm("gap", "true_time")["loss_mean"],
            loss,
        ],
    ),
    (
        "with gates on inputs as well as outputs, and slow time networks, {:.4f}",
        lambda: [arm("gap", "slow_gates_on_both")["loss_mean"]],
    ),
    (
        "end at {:.4f} with far fewer parameters",
        lambda: [arm("gap", "slow_small_network")["loss_mean"]],
    ),
    (
        "were what to confirm: {:.4f}, {:.0%} more parameters than `shared`, which ends at {:.4f}",
        lambda: [
            arm("gap", "slow_small_gates_on_both")["loss_mean"],
            ratio("gap", "params", "slow_small_gates_on_both", "shared") - 1,
            arm("gap", "shared")["loss_mean"],
        ],
    ),
    (
        "minus `shared` is {:+.4f} ({:+.4f} to {:+.4f}), and most of the distance",
        lambda: above("gates", "slow_small_gates_on_both", "shared"),
    ),
    (
        "told one time for all layers end {:.3f} higher ({:.3f} to {:.3f}) than told the true one, in "
        "each of five seeds; corrected for all {} pairs p is {:.3f} on the valid split and {:.3f} on "
        "the test split",
        lambda: [
            *above("gates", *DEPTH),
            *corrected(*DEPTH),
        ],
    ),
    (
        "end {:.3f} below `shared`; over five seeds it is {:.3f} ({:.3f} to {:.3f}), and with biases "
        "that depend on depth, too, {:.3f} ({:.3f} to {:.3f})",
        lambda: [
            arm("gap", "shared")["loss_mean"] - arm("gap", "slow_small_gates_on_both")["loss_mean"],
            *above("gates", "shared", "slow_small_gates_on_both"),
            *above("gates", "shared", "slow_small_both_shifted"),
        ],
    ),
    (
        "by {:.3f} to {:.3f} (one standard deviation), those of `shared` by {:.3f}",
        lambda: [
            *least_and_most(
                arm("gates", name)["loss_std"] for name in (*DEPTH, "slow_small_both_shifted")
            ),
            arm("gates", "shared")["loss_std"],
        ],
    ),
    (
        "by {:.3f} ({:.3f} to {:.3f}), in each of the five seeds; on the test split by {:.3f} ({:.3f} "
        "to {:.3f})",
        lambda: [*above("gates", *DEPTH), *above("gates", *DEPTH, "test")],
    ),
    ("the interval has zero inside ({:.3f} to {:.3f})", lambda: unpaired("gates", *DEPTH)),
    (
        "Corrected for all {} pairs p is {:.3f}, on the test split {:.3f}",
        lambda: corrected(*DEPTH),
    ),
    (
        "Gates that cannot depend on depth end {:.3f} above `shared` ({:.3f} to {:.3f}), those that "
        "can {:.3f} below it",
        lambda: [
            *above("gates", "slow_small_both_constant", "shared"),
            above("gates", "shared", "slow_small_gates_on_both")[0],
        ],
    ),
    (
        "`standard_narrow` ends {:.3f} below `shared` ({:.3f} to {:.3f}), with {:.0%} of its "
        "operations, and {:.3f} below the gates ({:.3f} to {:.3f})",
        lambda: [
            *above("gates", "shared", "standard_narrow"),
            ratio("gates", "training_flops", "standard_narrow", "shared"),
            *above("gates", "slow_small_gates_on_both", "standard_narrow"),
        ],
    ),
    (
        "gates that have no bounds (1 + g in place of 2 sigmoid(g)) the same networks end at {:.4f}, "
        "told time in frequencies up to 10 in place of 1000 at {:.4f}. Biases that depend on depth, "
        "too, bring them to {:.4f}",
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
]
