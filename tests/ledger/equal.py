"""What docs/research_summary.md says with numbers of arms made equal in size or in operations."""

from tests.ledger.measured import Sentence, above, arm, pair, ratio, swept

SIZE = "laptop-parameters"
WORK = "laptop-flops"

SENTENCES: list[Sentence] = [
    (
        "stays at 128, {:.0%} above the reference",
        lambda: [ratio(SIZE, "params", "time_indexed_ssm", "time_indexed_mlp") - 1],
    ),
    (
        "ends {:.3f} below `time_indexed_mlp` ({:.3f} to {:.3f}; on the test split {:.3f}, {:.3f} to "
        "{:.3f}), in each of the five seeds, with {:.0%} more operations",
        lambda: [
            *above(SIZE, "time_indexed_mlp", "shared"),
            *above(SIZE, "time_indexed_mlp", "shared", "test"),
            ratio(SIZE, "training_flops", "shared", "time_indexed_mlp") - 1,
        ],
    ),
    (
        "ends [{:.3f} below it](#equal-parameters) ({:.3f} to {:.3f}), with {:.0%} more operations and "
        "half the learning rate: at equal parameters no cost of sharing is seen, but five seeds could "
        "have missed {:.3f}",
        lambda: [
            *above(SIZE, "time_indexed_mlp", "shared"),
            ratio(SIZE, "training_flops", "shared", "time_indexed_mlp") - 1,
            pair(SIZE, "shared", "standard")["detectable_difference"],
        ],
    ),
    (
        "`shared` ends {:.3f} above `standard` ({:.3f} to {:.3f}; on the test split {:.3f}, {:.3f} to "
        "{:.3f}), with {:.1f} times its operations. Five seeds could have missed {:.3f}, and equality "
        "within 0.01 is not shown (p = {:.3f} corrected, {:.3f} of this pair alone)",
        lambda: [
            *above(SIZE, "shared", "standard"),
            *above(SIZE, "shared", "standard", "test"),
            ratio(SIZE, "training_flops", "shared", "standard"),
            *(
                pair(SIZE, "shared", "standard")[f]
                for f in (
                    "detectable_difference",
                    "p_value_equivalence_holm",
                    "p_value_equivalence",
                )
            ),
        ],
    ),
    (
        "chose 4e-3 for `shared` at width 152 and 8e-3 at 128. One seed decided that: at 152 it ends "
        "at {:.4f} and {:.4f} with these two rates, at 128 at {:.4f} and {:.4f}",
        lambda: [
            swept(experiment, "shared", rate)
            for experiment in (SIZE, "laptop")
            for rate in (4e-3, 8e-3)
        ],
    ),
    (
        "{:.3f} below `standard` of {:.0%} of its size ({:.3f} to {:.3f}), with {:.1f} times the "
        "operations",
        lambda: [
            (found := above(SIZE, "standard", "time_indexed_ssm"))[0],
            ratio(SIZE, "params", "standard", "time_indexed_ssm"),
            *found[1:],
            ratio(SIZE, "training_flops", "time_indexed_ssm", "standard"),
        ],
    ),
    (
        "a model of width 20, with {:.0%} of the operations of `time_indexed_mlp`",
        lambda: [ratio(SIZE, "training_flops", "tong_neuralode", "time_indexed_mlp")],
    ),
    (
        "`standard_narrow` has then {:,} steps, `tong_neuralode` {:,} and `time_indexed_ssm` {:,}",
        lambda: [
            arm(WORK, name)["steps"]
            for name in ("standard_narrow", "tong_neuralode", "time_indexed_ssm")
        ],
    ),
    (
        "`standard_narrow` ends {:.3f} below `standard` ({:.3f} to {:.3f}; on the test split {:.3f}, "
        "{:.3f} to {:.3f}), with {:.0%} of its parameters",
        lambda: [
            *above(WORK, "standard", "standard_narrow"),
            *above(WORK, "standard", "standard_narrow", "test"),
            ratio(WORK, "params", "standard_narrow", "standard"),
        ],
    ),
    (
        "`time_indexed_ssm` ends {:.3f} below `standard` ({:.3f} to {:.3f}), and {:.3f} above "
        "`standard_narrow` ({:.3f} to {:.3f}), which is {:.0%} smaller",
        lambda: [
            *above(WORK, "standard", "time_indexed_ssm"),
            *above(WORK, "time_indexed_ssm", "standard_narrow"),
            1 - ratio(WORK, "params", "standard_narrow", "time_indexed_ssm"),
        ],
    ),
    (
        "`tong_neuralode` ends {:.3f} below `standard` ({:.3f} to {:.3f}) and {:.3f} above "
        "`standard_narrow` ({:.3f} to {:.3f})",
        lambda: [
            *above(WORK, "standard", "tong_neuralode"),
            *above(WORK, "tong_neuralode", "standard_narrow"),
        ],
    ),
    (
        "`shared` ends {:.3f} above `standard_narrow` ({:.3f} to {:.3f}), `time_indexed_mlp` {:.3f} "
        "({:.3f} to {:.3f})",
        lambda: [
            *above(WORK, "shared", "standard_narrow"),
            *above(WORK, "time_indexed_mlp", "standard_narrow"),
        ],
    ),
    (
        "given as many operations by more steps, ends [{:.3f} below `standard`](#equal-operations) "
        "({:.3f} to {:.3f}) and {:.3f} below `time_indexed_ssm` ({:.3f} to {:.3f})",
        lambda: [
            *above(WORK, "standard", "standard_narrow"),
            *above(WORK, "time_indexed_ssm", "standard_narrow"),
        ],
    ),
]
