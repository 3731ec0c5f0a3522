"""Plans: what is compared, and every mistake a sentence."""

import dataclasses
import math
import re

import pytest
import yaml

from qkvflow.config import ConfigError
from qkvflow.experiments.matching import matched_run, shapes_of, steps_of_equal_cost, with_parameters
from qkvflow.experiments.plan import PLANS, Plan, read_plan
from qkvflow.models import count_parameters, training_flops
from qkvflow.train.step import Learner
from tests.experiments.support import tiny_fields


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANS.glob("*.yaml")))
def test_every_named_plan_can_be_made(name):
    plan = read_plan(name)
    runs = [matched_run(plan, arm, 100) for arm in plan.arms]
    for run in {str(dataclasses.replace(run, data="any")): run for run in runs}.values():
        Learner.of(run, run.model_config(100))
    assert plan.sweep is None or plan.sweep.seed not in plan.seeds


def test_a_plan_like_another_one_has_its_tables_and_its_own(tmp_path):
    main, large = read_plan("main"), read_plan("main_large")
    assert large.names == main.names and large.contrasts == main.contrasts
    assert large.arm("looped").run.architecture.weights.plan == "1 + 1x4 + 1"
    assert large.arm("shared").run.architecture.hidden_dim == 192
    assert large.base["architecture"]["flavour"] == main.base["architecture"]["flavour"]
    own = tmp_path / "own.yaml"
    own.write_text("like: main\nseeds: 2\narms: {more: {model: shared}}\n")
    assert read_plan(str(own)).names == [*main.names, "more"] and read_plan(str(own)).seeds == (0, 1)
    assert "like" not in read_plan(str(own)).fields, "a plan that is recorded is whole"
    for name, sentence in [
        ("mian", "There is no such plan.*'mian'"),
        ("main_large", "that plan itself is like 'main'"),
    ]:
        own.write_text(f"like: {name}\n")
        with pytest.raises(ConfigError, match=re.compile(sentence, re.DOTALL)):
            read_plan(str(own))


def test_the_ablation_has_an_arm_for_each_choice():
    arms = {
        *("true_time", "constant_time", "layer_vector", "learned_fourier"),
        *("gates_on_elements", "shared", "hybrid"),
    }
    assert arms == {arm.name for arm in read_plan("ablation").arms}


def test_every_arm_of_the_ablation_is_another_run():
    arms = read_plan("ablation").arms
    runs = {(yaml.safe_dump(arm.run.to_dict()), arm.parameters_of): arm.name for arm in arms}
    assert len(runs) == len(arms)


def test_a_plan_over_other_steps_and_seeds():
    plan = read_plan("ablation").with_arms(["shared", "true_time"])
    longer = plan.with_steps(3000).with_seeds([10, 11])
    assert [arm.run.steps for arm in longer.arms] == [3000, 3000]
    assert longer.seeds == (10, 11) and longer.sweep == plan.sweep
    with pytest.raises(ConfigError, match="one of the runs' seeds"):
        plan.with_seeds([1000])


def test_arms_differ_from_the_base_only_in_what_they_say():
    fields = tiny_fields("x.txt", arms={"a": None, "b": {"architecture": {"num_layers": 3}}})
    plan = Plan.of({**fields, "reference": "a"})
    first, second = (arm.run.to_dict() for arm in plan.arms)
    assert second["architecture"].pop("num_layers") == 3
    assert first["architecture"].pop("num_layers") == 2
    assert first == second


@pytest.mark.parametrize("model", ["standard", "time_indexed_ssm"])
def test_an_arm_is_narrowed_or_widened_to_the_parameters_of_another(model):
    arms = {
        "big": {"model": "standard", "architecture": {"hidden_dim": 96}},
        "other": {"model": model, "parameters_of": "big"},
    }
    plan = Plan.of(tiny_fields("x.txt", arms=arms, reference="big"))
    wanted = count_parameters(shapes_of(plan.arm("big").run, 256)).total
    run = matched_run(plan, plan.arm("other"), 256)
    found = count_parameters(shapes_of(run, 256)).total
    assert abs(found - wanted) / wanted < 0.05
    if model == "standard":
        assert run.architecture.hidden_dim == 96


@pytest.mark.parametrize("model", ["standard", "tong_neuralode", "shared"])
def test_the_width_that_is_found_is_the_nearest_of_all(model):
    """Tried one by one, from 2 to 48."""
    run = Plan.of(tiny_fields("x.txt", arms={"standard": {"model": model}})).arms[0].run
    sizes = {}
    for width in range(2, 49, 2):
        architecture = dataclasses.replace(run.architecture, hidden_dim=width)
        model_of_width = shapes_of(dataclasses.replace(run, architecture=architecture), 256)
        sizes[width] = count_parameters(model_of_width).total
    for wanted in range(sizes[2], sizes[48], sizes[48] // 7):
        found = with_parameters(run, wanted, 256).architecture.hidden_dim
        assert abs(sizes[found] - wanted) == min(abs(size - wanted) for size in sizes.values())


def test_widths_of_a_state_space_part_have_whole_heads():
    """Three times the width has to be so many heads of 8."""
    part = {"part": "ssm", "expand": 3, "head_size": 8}
    ssm = {"model": "time_indexed_ssm", "architecture": {"parts": ["attention", part]}}
    arms = {"ssm": ssm, "standard": {"model": "standard", "parameters_of": "ssm"}}
    plan = Plan.of(tiny_fields("x.txt", arms=arms))
    wanted = count_parameters(shapes_of(plan.arm("ssm").run, 256)).total
    assert with_parameters(plan.arm("ssm").run, wanted, 256).architecture.hidden_dim == 16


def test_an_arm_may_be_called_by_a_number():
    plan = Plan.of(tiny_fields("x.txt", arms={1: {"model": "standard"}, 2: None}, reference="1"))
    assert [arm.name for arm in plan.with_arms(["2"]).matched("flops").arms] == ["2"]
    with pytest.raises(ConfigError, match=r"'3'. .*Known: 1, 2"):
        plan.arm("3")


def test_an_arm_that_costs_nearly_as_much_keeps_its_steps():
    """So that its runs are those of the comparison at equal steps."""
    plan = read_plan("laptop").matched("flops")
    steps = {arm.name: matched_run(plan, arm, 284).steps for arm in plan.arms}
    assert steps["shared"] == steps["time_indexed_mlp"] == steps["standard"] == 3000
    assert steps["time_indexed_ssm"] < 3000 * 0.9
    assert steps["standard_narrow"] > 3000 * 2


def test_an_arm_is_given_the_steps_that_cost_as_much():
    arms = {"standard": {"model": "standard", "steps": 100}, "ssm": {"model": "time_indexed_ssm"}}
    arms["ssm"]["flops_of"] = "standard"
    plan = Plan.of(tiny_fields("x.txt", arms=arms))
    run = matched_run(plan, plan.arm("ssm"), 256)
    ours, theirs = (
        r.steps * training_flops(shapes_of(r, 256), r.batch_size, r.length)
        for r in (run, plan.arm("standard").run)
    )
    assert ours == pytest.approx(theirs, rel=0.02)
    assert steps_of_equal_cost(run, run, 256) == run.steps


@pytest.mark.parametrize("what", ["parameters", "flops"])
def test_all_arms_are_made_equal_to_the_reference(what):
    base = {**tiny_fields("x.txt")["base"], "steps": 200, "architecture": {"hidden_dim": 64}}
    plan = Plan.of(tiny_fields("x.txt", base=base))
    assert plan.matched("steps") is plan
    runs = [matched_run(plan.matched(what), arm, 256) for arm in plan.matched(what).arms]
    sizes = [count_parameters(shapes_of(run, 256)).total for run in runs]
    costs = [r.steps * training_flops(shapes_of(r, 256), r.batch_size, r.length) for r in runs]
    matched = sizes if what == "parameters" else costs
    assert matched[1] == pytest.approx(matched[0], rel=0.05)
    assert runs[0] == plan.arms[0].run


def test_an_arm_that_is_there_for_its_size_is_no_copy_of_the_reference():
    arms = {
        "standard": {"model": "standard"},
        "gated": {"model": "time_indexed_mlp"},
        "narrow": {"model": "standard", "parameters_of": "gated"},
    }
    plan = Plan.of(tiny_fields("x.txt", arms=arms))
    assert [arm.name for arm in plan.matched("parameters").arms] == ["standard", "gated"]
    equal = plan.matched("flops")
    assert [arm.flops_of for arm in equal.arms] == [None, "standard", "standard"]
    assert equal.arm("narrow").parameters_of == "gated"
    other = plan.with_reference("gated").matched("parameters")
    assert [arm.parameters_of for arm in other.arms] == ["gated", None]
    with pytest.raises(ConfigError, match="reference is 'gates'. Did you mean 'gated'"):
        plan.with_reference("gates")


def test_some_of_the_arms_and_some_seeds():
    plan = Plan.of(tiny_fields("x.txt"))
    assert plan.seeds == (0, 1)
    assert Plan.of(tiny_fields("x.txt", seeds=[7, 5])).seeds == (7, 5)
    assert plan.with_arms(["gated"]).reference == "gated"
    assert plan.with_arms(["standard", "gated"]).arms == plan.arms
    with pytest.raises(ConfigError, match="no arm 'gate'. Did you mean 'gated'"):
        plan.with_arms(["gate"])
    with pytest.raises(ConfigError, match="name at least one of standard, gated"):
        plan.with_arms([])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arm": {}}, "no field 'arm'. Did you mean 'arms'"),
        ({"arms": {}}, "arms is missing"),
        ({"arms": {"a": {"model": "standard", "step": 3}}}, "a: .*step.*Did you mean"),
        *(
            ({"arms": {name: {}}}, "cannot be used for a directory")
            for name in ("a/b", "..", "/tmp", "", "~")
        ),
        ({"arms": {"a": {"seed": 3}}}, "seed and seeds are set by the experiment"),
        ({"arms": {"a": {"parameters_of": "b"}}, "reference": "a"}, "parameters_of is 'b'"),
        ({"arms": {"a": {"length": 8}}, "reference": "a"}, "a: length is the same for all arms"),
        ({"base": {"final_tokens": 64}}, "leave final_tokens out"),
        (
            {"arms": {"a": {"parameters_of": "b"}, "b": {"parameters_of": "c"}, "c": {}}},
            "a: parameters_of is 'b', which is itself matched",
        ),
        (
            {"arms": {"a": {"flops_of": "b"}, "b": {"parameters_of": "c"}, "c": {}}},
            "a: flops_of is 'b', which is itself matched",
        ),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [3, 3]}, r"seeds is \[3, 3\]"),
        ({"seeds": [5, -1]}, r"seeds is \[5, -1\]"),
        ({"reference": "gate"}, "reference is 'gate'. Did you mean 'gated'"),
        ({"seeds": 10**12}, "seeds is 1000000000000; expected a number of seeds, up to 1,000"),
        ({"seeds": [2**32]}, r"seeds is \[4294967296\]; .* from 0 to 2147483647"),
        ({"seeds": [*range(1001)]}, "expected a number of seeds, up to 1,000"),
        ({"arms": {1: {}, "1": {}}}, "arms: '1' is given twice"),
        ({"arms": {"A": {}, "a": {}}}, "arms: 'A' and 'a' would share a directory"),
        (
            {"arms": {"\u00e9": {}, "e\u0301": {}}},
            "cannot be used for a directory|would share a directory",
        ),
        ({"arms": {"a" * 101: {}}}, "cannot be used for a directory; use up to 100 letters"),
        ({"arms": {"a": {"parameters_of": [1]}, "b": {}}}, r"a: parameters_of is '\[1\]'"),
        ({"arms": {"a": {"start": 3}}}, "a: start is 3; expected a table"),
        ({"arms": {"a": {"start": {}}}}, "a: start: arm is missing"),
        ({"arms": {"a": {"start": {"arm": "x/y", "depth": 10**9}}}}, "depth is 1000000000; expected a"),
        ({"margin": math.nan}, "margin is nan; expected a number above 0"),
        ({"margin": math.inf}, "margin is inf; expected a number above 0"),
        (
            {"sweep": {"learning_rates": [1e-3, math.inf]}},
            "at least two increasing numbers, above 0 and finite",
        ),
        (
            {"sweep": {"learning_rates": [1e-3, math.nan]}},
            "at least two increasing numbers, above 0 and finite",
        ),
        (
            {"sweep": {"learning_rates": [1e-3, 1.0000001e-3]}},
            "rates that differ in their first six digits",
        ),
        ({"sweep": {"seed": 2**32}}, "seed is 4294967296; expected at least 0, below"),
        ({"margin": 0}, "margin is 0"),
        ({"test": "yes"}, "test is 'yes'"),
        ({"sweep": {"learning_rates": [1e-3, 1e-3]}}, "at least two increasing numbers"),
        ({"sweep": {"seed": 1}}, "seed 1 is one of the runs' seeds"),
        ({"sweep": {"seed": 3, "num_seeds": 3}, "seeds": [5]}, "seed 5 is one of the runs' seeds"),
        ({"sweep": 3}, "sweep is 3"),
        ({"depths": [2, 0]}, "expected distinct numbers of layers"),
        ({"depths": [2, 2]}, "expected distinct numbers of layers"),
        ({"depths": 4}, "depths is 4"),
        ({"sweep": {}, "arms": {"a": {"learning_rates": [1e-3]}}}, "a: learning_rates is .* two"),
        ({"arms": {"a": {"learning_rates": [1e-3, 2e-3]}}}, "a: learning_rates needs a sweep"),
        ({"sweep": {"seed": -1}}, "seed is -1"),
        ({"contrasts": [["gated"]]}, "contrasts is .*expected a list of pairs"),
        ({"contrasts": [["gated", "shared"]]}, "contrasts: there is no arm 'shared'"),
        ({"contrasts": [["gated", "gated"]]}, "different pairs of different arms"),
        (
            {"contrasts": [["gated@2", "shared@2"]], "depths": [2]},
            "contrasts: there is no arm 'shared'",
        ),
        ({"contrasts": [["gated@3", "gated"]], "depths": [2]}, "gated@3 is an arm at a depth, .*: 2."),
        ({"contrasts": [["gated@2", "gated"]]}, "gated@2 is an arm at a depth, .*: none."),
        ({"depth_tokens": 0}, "depth_tokens is 0"),
        (
            {"contrasts": [["gated", "standard"], ["standard", "gated"]]},
            "different pairs of different arms",
        ),
        (
            {"arms": {"a": {"data": "y.txt"}, "b": {}}, "reference": "a", "contrasts": [["a", "b"]]},
            "contrasts: a and b read different texts",
        ),
        ({"arms": {"a": {"start": {"arm": "base"}}}}, "a: start: arm is 'base'; expected DIR/ARM"),
        ({"arms": {"a": {"start": {"of": "x/y"}}}}, "a: start: .*'of'"),
        (
            {"arms": {"a": {"start": {"arm": "x/y"}, "parameters_of": "b"}, "b": {}}},
            "a: parameters_of cannot be combined with start",
        ),
        (
            {"arms": {"a": {"flops_of": "b"}, "b": {"start": {"arm": "x/y"}}}},
            "a: flops_of is 'b', which has a start",
        ),
    ],
)
def test_mistakes_are_sentences(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Plan.of(tiny_fields("x.txt", **changes)).checked()


def test_a_name_that_is_a_number_is_no_field():
    with pytest.raises(ConfigError, match="no field '1'"):
        Plan.of({**tiny_fields("x.txt"), 1: 2})


def test_a_plan_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="'laptops'. Did you mean 'laptop'"):
        read_plan("laptops")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_plan(str(tmp_path / "none.yaml"))
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"base": {"batch_size": 0}, "arms": {"a": {"model": "standard"}}}))
    with pytest.raises(ConfigError, match=r"plan.yaml cannot be used:(.|\n)*batch_size is 0"):
        read_plan(str(path))
