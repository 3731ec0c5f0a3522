"""The worth of a loop in an experiment: which models tell it, what is in their loops, what is found."""

import dataclasses

import pytest

from qkvflow.experiments import tables
from qkvflow.experiments.loops import Loop, loop_of, loop_worth
from qkvflow.experiments.plan import read_plan
from qkvflow.scaling import LoopLaw
from tests.experiments.support import made_up_failure, made_up_record

PLAN = read_plan("loops")


def record(arm, seed=0, loss=1.5, parameters=None):
    """That of a run of the plan that never ran; in all, so many parameters beside its loop."""
    run = PLAN.arm(arm).run.to_dict()
    found = dataclasses.replace(made_up_record(arm, seed, loss), run={**run, "seed": seed})
    costs = dataclasses.replace(found.costs, parameters=parameters or 10**6)
    return dataclasses.replace(found, costs=costs)


@pytest.mark.parametrize(
    ("arm", "layers", "visits"), [("twice_96", 2, 2), ("four_times_96", 1, 4), ("six_times_96", 1, 6)]
)
def test_the_parameters_of_a_loop_are_those_of_its_layers(arm, layers, visits):
    """A layer has maps of 4 E^2 and of 3 E M; norms belong to visits, and to the layer in `shared`."""
    maps = 4 * 96**2 + 3 * 96 * 256
    norms = 2 * 96 + 2 * 32 if arm.startswith("six") else 0
    assert loop_of(record(arm)) == Loop(layers * maps + norms, visits)


def test_what_has_no_loop_and_what_cannot_be_said():
    own, twice = record("own_96"), record("twice_96")
    assert loop_of(own) == Loop(0, 1)
    around = {"family": "looped", "plan": "1 + 2x2 + 1", "around": "gated"}
    for weights in ("gated", around, {"family": "looped", "plan": [0, 1, 2, 1, 2, 2]}):
        changed = {**twice.run["architecture"], "weights": weights}
        assert loop_of(dataclasses.replace(twice, run={**twice.run, "architecture": changed})) is None
    straight = {
        **twice.run["architecture"],
        "weights": {"family": "looped", "plan": [0, 1, 2, 3, 4, 5]},
    }
    run = {**twice.run, "architecture": straight}
    assert loop_of(dataclasses.replace(twice, run=run)) == Loop(0, 1)


def known(phi):
    """Records of the plan's models whose losses are those of a law."""
    law, found = LoopLaw(1.0, 60.0, 0.4, phi), []
    for arm in PLAN.names:
        loop = loop_of(record(arm))
        total = 1000 * PLAN.arm(arm).run.architecture.hidden_dim + loop.parameters
        (mean,) = law.loss([total - loop.parameters], [loop.parameters], [loop.visits])
        found += [record(arm, i, mean + noise, total) for i, noise in enumerate((-1e-3, 0.0, 1e-3))]
    return found


@pytest.mark.parametrize("phi", [0.2, 0.8])
def test_a_known_worth_is_found_and_shown(phi):
    worth = loop_worth([*known(phi), made_up_failure("own_96", 3)])
    assert worth.law.phi == pytest.approx(phi, abs=0.01)
    assert worth.phi.low < phi < worth.phi.high
    table = tables.worth_of_loop(worth)
    assert table.rows[0][0] == "12 models" and table.rows[0][3] == f"{worth.law.phi:.2f}"
    assert "own_96, twice_96" in table.note


def test_models_that_are_too_few_or_not_trained_alike_say_nothing():
    records = known(0.5)
    few = [run for run in records if run.arm in PLAN.names[:4]]
    assert loop_worth(few) is None
    assert loop_worth([run for run in records if run.arm.startswith("own")]) is None
    assert loop_worth([run for run in records if run.seed == 0]) is None, "no interval"
    others = [
        dataclasses.replace(run, run={**run.run, "steps": 2000}) if run.arm == "own_96" else run
        for run in records
    ]
    assert loop_worth(others) is None
