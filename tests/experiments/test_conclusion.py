"""What a page says first: who is best, by how much, who may be as good, and what is not shown."""

import dataclasses

import pytest

from qkvflow.data import Accuracy
from qkvflow.experiments.conclusion import beaten_in_words, conclude
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.results import Experiment
from qkvflow.experiments.words import arm_in_words
from tests.experiments.support import made_up_failure, made_up_record, tiny_fields

LOSSES = {"standard": (2.34, 2.35, 2.36), "gated": (2.20, 2.21, 2.23), "third": (2.22, 2.20, 2.25)}


def experiment_of(losses, sizes=(), **changes):
    """An experiment with these losses by arm; runs of the first arms may have other sizes."""
    arms = {name: {"model": "standard"} for name in losses}
    plan = Plan.of(tiny_fields("x.txt", **{"arms": arms, "seeds": 3, **changes}))
    sizes = dict(zip(losses, sizes))
    records = [
        made_up_record(arm, seed, loss, parameters=sizes.get(arm, 1000))
        for arm, of in losses.items()
        for seed, loss in enumerate(of)
    ]
    return Experiment(None, plan, records)


def test_the_best_one_its_lead_and_those_who_may_be_as_good():
    said = conclude(experiment_of(LOSSES, (4000, 2000, 500)))
    begin, end = said.found.split("; it is significantly below standard, by 0.1367 (95%: ")
    assert begin.startswith("gated has the lowest loss, 2.2133 nats per token, with no significant ")
    assert "difference from third (a true one of up to 0." in begin
    assert end.endswith(", 3 seeds).")
    assert "At least 3 seeds per model, runs of 100 steps, one text" in said.limits
    facts = dict(said.facts)
    assert facts["its cost"] == "2,000 parameters, 1e+12 training FLOP, 21 ms per step, 10 MB."
    assert facts["smaller"] == "With 25% of the parameters third is 0.0100 worse."


def test_who_leads_all_others_leads_the_next_by_so_much():
    far = {**LOSSES, "third": (3.22, 3.20, 3.25)}
    said = conclude(experiment_of(far)).found
    assert "; it is significantly below every other model, 0.1367 (95%: " in said
    assert said.endswith(", 3 seeds) below the next, standard.")


def test_an_interval_is_read_from_the_better_side():
    low, high = conclude(experiment_of(LOSSES)).found.split("95%: ")[1].split(",")[0].split(" to ")
    assert 0 < float(low) < 0.1367 < float(high)


def test_one_seed_ranks_nothing():
    said = conclude(experiment_of({"standard": (2.3,), "gated": (2.2,)}, seeds=1))
    assert said.found == "gated has the lowest loss, 2.2000 nats per token."
    assert "One run of 100 steps of each does not rank the models" in said.limits


def test_of_planned_contrasts_it_is_said_how_many_differ():
    contrasts = [["gated", "standard"], ["third", "gated"]]
    said = conclude(experiment_of(LOSSES, contrasts=contrasts)).found
    assert said.startswith("1 of the 2 planned differences are significant; in the largest, gated is")
    assert " below standard by 0.1367 (95%: " in said
    close = {"standard": (2.0, 2.1, 2.2), "gated": (2.1, 2.0, 2.2)}
    said = conclude(experiment_of(close, contrasts=[["gated", "standard"]])).found
    assert said.startswith("There is no significant difference between gated and standard (a true one")
    close["third"] = close["standard"]
    contrasts = [["gated", "standard"], ["third", "gated"]]
    said = conclude(experiment_of(close, contrasts=contrasts)).found
    assert said.startswith("None of the 2 planned differences is significant (a true one of up to 0.")


def test_where_answers_are_judged_it_is_they_that_are_said():
    """The first has the lower loss and more wrong answers."""
    losses = {"standard": (2.0, 2.0, 2.0), "gated": (2.5, 2.5, 2.5)}
    right = {"standard": (0.5, 0.52, 0.51), "gated": (0.9, 0.93, 0.92)}
    whole = experiment_of(losses, (1000, 500))
    records = [answered(run, right[run.arm][run.seed]) for run in whole.records]
    said = conclude(dataclasses.replace(whole, records=records))
    assert said.found.startswith("gated has the lowest share of wrong answers, 0.0833; it is ")
    assert "significantly below every other model, by 0.4067 (95%: " in said.found
    assert [head for head, _ in said.facts] == ["what it is", "its cost"]
    planned = experiment_of(losses, contrasts=[["standard", "gated"]])
    found = conclude(dataclasses.replace(planned, records=records)).found
    assert "in the largest, gated has fewer wrong answers than standard by 0.4067" in found
    not_all = conclude(dataclasses.replace(whole, records=[*records[:3], *whole.records[3:]]))
    assert not_all.found.startswith("standard has the lowest loss, 2.0000 nats per token")


def answered(run, share):
    """The record of a run with so many right answers."""
    accuracy = Accuracy(share, share, 100, "hops", {"1": share}, {"1": 0.5})
    return dataclasses.replace(run, valid=dataclasses.replace(run.valid, accuracy=accuracy))


def test_losses_on_different_texts_are_not_compared():
    whole = experiment_of({"standard": (2.3,), "gated": (2.2,)}, seeds=1)
    first, second = whole.records
    other = dataclasses.replace(second, run={**second.run, "data": "y.txt"})
    said = conclude(dataclasses.replace(whole, records=[first, other]))
    assert "different texts, on which losses cannot be compared" in said.found


def test_a_model_of_which_a_run_failed_is_not_called_the_best():
    whole = experiment_of({"standard": (2.3, 2.3), "gated": (2.0,)}, seeds=2)
    records = [*whole.records, made_up_failure("gated", 1)]
    assert conclude(dataclasses.replace(whole, records=records)).found.startswith("standard has")
    nothing = [made_up_failure("gated", 0)]
    assert conclude(dataclasses.replace(whole, records=nothing)).found.startswith("No run ")


def test_n_grams_above_and_below_are_named():
    baselines = {"1-gram": 3.1, "2-gram": 2.4, "3-gram": 1.8, "4-gram": 1.9}
    said = "Better than a table of 2-grams (2.400), not better than one of 4-grams (1.900)."
    assert beaten_in_words(2.0, baselines) == said
    assert beaten_in_words(1.5, baselines) == "Better than a table of 3-grams (1.800)."
    assert beaten_in_words(3.5, baselines) == "Not better than one of 1-grams (3.100)."
    assert beaten_in_words(3.5, {}) == ""


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ({"model": "shared"}, "one layer's weights at every depth: the control"),
        (
            {"model": "shared", "depths": []},
            "one layer's weights at every depth: the control; trained at its own depth",
        ),
        (
            {"model": "standard", "steps": 3000, "architecture": {"num_layers": 12}},
            "own weights in every layer: the ordinary transformer; 3,000 steps; 12 layers",
        ),
        (
            {
                "model": "shared",
                "architecture": {"weights": {"family": "gated", "gate": "both"}, "qk_norm": True},
                "optimizer": {"name": "adamw"},
                "depths": [2, 4],
            },
            "one layer's weights at every depth: the control; weights gated, gate both; qk norm yes; "
            "optimizer adamw; trained at 2, 4 layers",
        ),
        (
            {"start": {"arm": "base/standard", "depth": 4, "train": "adapter"}},
            "goes on from base/standard at 4 layers, training an adapter",
        ),
    ],
)
def test_an_arm_in_words(arm, words):
    plan = Plan.of(tiny_fields("x.txt", arms={"standard": {}, "own": arm}, reference="standard"))
    assert arm_in_words(plan.arm("own")) == words
