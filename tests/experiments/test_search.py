"""Sweeps over more than the learning rate: what is tried next, what is chosen, what is kept."""

import json
import math

import pytest
import yaml

from qkvflow.config import ConfigError
from qkvflow.experiments.jobs import run_jobs, sweep_jobs
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Choice, Swept, choices_of_json, choices_to_json
from qkvflow.experiments.results import read_choices, read_experiment, read_sweep, save_plan
from qkvflow.experiments.runner import complete, tune
from qkvflow.experiments.search import Search, Try, chosen, losses_of
from qkvflow.experiments.sweep import setting_of
from qkvflow.files import FileError
from tests.experiments.support import Counter, made_up_failure, made_up_record, tiny_fields

DECAY, DROPOUT = "optimizer.weight_decay", "architecture.resid_pdrop and architecture.embd_pdrop"
RATES = (1.0, 2.0, 4.0, 8.0)
BOTH = {DECAY: (0.0, 1.0, 2.0), DROPOUT: (0.0, 0.5)}


def found(search, loss):
    """What a search tries, round by round, where this is the loss; and its choice."""
    losses, rounds = {}, []
    while ahead := search.ahead(losses):
        assert not losses.keys() & {*ahead}, "nothing is tried twice"
        rounds.append(len(ahead))
        losses |= {each: loss(each.rate, *each.settings) for each in ahead}
    return rounds, search.chosen(losses)


def bowl(at, *others):
    """A loss whose best rate and settings are these."""
    return lambda rate, *settings: (
        math.log2(rate / at) ** 2 + sum((a - b) ** 2 for a, b in zip(settings, others, strict=True))
    )


def test_one_setting_is_tried_after_the_other_and_then_the_rates_beside():
    rounds, choice = found(Search(RATES, 0, BOTH, (0.0, 0.0)), bowl(4.0, 1.0, 0.5))
    assert rounds == [4, 2, 1, 2], "a grid would take 24"
    assert (choice.learning_rate, choice.inside) == (4.0, True)
    assert choice.values == {DECAY: 1.0, DROPOUT: 0.5}
    assert [each.inside for each in choice.settings] == [True, False]
    assert [rate for rate, _ in choice.sweep] == [2.0, 4.0, 8.0], "with the settings that were chosen"
    assert [rate for rate, _ in choice.first] == list(RATES)


def test_where_nothing_else_is_better_no_rate_is_tried_again():
    rounds, choice = found(Search(RATES, 0, BOTH, (0.0, 0.0)), bowl(4.0, 0.0, 0.0))
    assert rounds == [4, 2, 1]
    assert choice.values == {DECAY: 0.0, DROPOUT: 0.0}
    assert all(each.inside for each in choice.settings), "below 0 there is nothing"


def test_the_rate_moves_with_the_settings_until_it_lies_between_two():
    def loss(rate, decay, dropout):
        return math.log2(rate * (1 + 3 * decay) / 8.0) ** 2 / 10 - decay

    search = Search(RATES, 0, {DECAY: (0.0, 1.0), DROPOUT: (0.0, 0.5)}, (0.0, 0.0))
    rounds, choice = found(search, loss)
    assert rounds == [4, 1, 1, 1, 1, 1], "the best without decay is 8, with it 2"
    assert (choice.learning_rate, choice.inside) == (2.0, True)
    assert [rate for rate, _ in choice.sweep] == list(RATES)
    assert choice.values == {DECAY: 1.0, DROPOUT: 0.0}


def test_without_settings_it_is_a_sweep_over_rates_that_may_be_widened():
    rounds, choice = found(Search((4.0, 8.0), 2, {}, ()), bowl(1.0))
    assert rounds == [2, 1, 1]
    assert choice == Choice(1.0, False, ((1.0, 0.0), (2.0, 1.0), (4.0, 4.0), (8.0, 9.0)))
    assert found(Search((4.0, 8.0), 0, {}, ()), bowl(1.0))[0] == [2]
    assert found(Search((1.0, 2.0, 4.0), 2, {}, ()), bowl(2.0))[0] == [3]


def test_what_fails_is_not_chosen():
    def loss(rate, *settings):
        return None if rate > 4.0 or 2.0 in settings else bowl(8.0, 2.0, 0.5)(rate, *settings)

    _, choice = found(Search(RATES, 0, BOTH, (0.0, 0.0)), loss)
    assert (choice.learning_rate, choice.values) == (4.0, {DECAY: 1.0, DROPOUT: 0.5})
    rounds, choice = found(Search(RATES, 3, BOTH, (0.0, 0.0)), lambda *_: None)
    assert rounds == [4] and choice.learning_rate is None and not choice.values


def test_a_choice_at_an_end_is_said_to_be_at_an_end():
    def of(records):
        return Search((), 0, {}, ()).chosen(losses_of(records, {}))

    sweep = {1e-3: 3.0, 2e-3: 2.0, 4e-3: 2.5}
    records = [made_up_record("a", 0, loss, rate=rate) for rate, loss in sweep.items()]
    assert of(records) == Choice(2e-3, True, tuple(sweep.items()))
    again = [made_up_record("a", 1, loss + 0.5, rate=rate) for rate, loss in sweep.items()]
    mean_of = {rate: loss + 0.25 for rate, loss in sweep.items()}
    assert of([*records, *again]) == Choice(2e-3, True, tuple(mean_of.items()))
    assert of([*records, made_up_failure("a", 2)]).sweep[0] == (1e-3, None)
    assert not of(records[1:]).inside
    assert of([made_up_failure("a", 0)]).learning_rate is None


def test_choices_with_settings_are_kept_with_their_schema_and_others_as_before():
    plain = Choice.of([(1e-3, 2.0), (2e-3, 1.0)])
    full = found(Search(RATES, 0, BOTH, (0.0, 0.0)), bowl(4.0, 1.0, 0.5))[1]
    content = json.loads(json.dumps(choices_to_json({"a": plain, "b": full})))
    assert content["a"].keys() == {"learning_rate", "inside", "sweep"}
    assert content["b"]["schema"] == 2
    assert choices_of_json(content, "here") == {"a": plain, "b": full}
    content["b"]["schema"] = 3
    with pytest.raises(FileError, match="here has a choice of schema 3; this version reads up to 2"):
        choices_of_json(content, "here")
    content["b"] |= {"schema": 2, "settings": [{"name": 3, "value": 1, "inside": True, "sweep": []}]}
    with pytest.raises(FileError, match="here is not a table of learning rates: name is 3"):
        choices_of_json(content, "here")
    assert Swept.of("x", [(2.0, 1.0), (1.0, 3.0)]) == Swept("x", 2.0, False, ((1.0, 3.0), (2.0, 1.0)))


@pytest.fixture
def swept(text):
    """The tables of a plan whose sweep has more than learning rates; one arm has its own."""
    also = {DROPOUT: [0.0, 0.6], DECAY: [0.0, 0.5]}
    sweep = {"learning_rates": [1e-3, 1e-2], "steps": 4, "also": also}
    arms = {"standard": {"model": "standard"}, "plain": {"model": "standard", "also": {}}}
    fields = tiny_fields(text, arms=arms, seeds=1, sweep=sweep)
    fields["base"] |= {"optimizer": {"weight_decay": 0.0}, "eval_tokens": 64}
    return fields


def test_runs_have_the_settings_that_their_sweep_chose(swept, tmp_path):
    """The choice stands, and what does not have it is refused."""
    plan, counter = Plan.of(swept).checked(), Counter()
    save_plan(plan, tmp_path)
    assert Plan.of(yaml.safe_load((tmp_path / "plan.yaml").read_text())) == plan
    records = complete(plan, tmp_path, counter)
    choices = read_choices(tmp_path)
    assert choices["plain"].settings == () and choices["plain"].first == ()
    for record in records:
        for name, value in choices[record.arm].values.items():
            assert setting_of(record.run, name) == value
    assert read_experiment(tmp_path).choices == chosen(plan, read_sweep(tmp_path)) == choices
    (tmp_path / "tuned.json").unlink()
    before = len(counter.begun)
    assert tune(plan, tmp_path, counter) == choices and len(counter.begun) == before
    assert not any(job.record() is None for job in run_jobs(plan, tmp_path, choices))
    content = json.loads((tmp_path / "tuned.json").read_text())
    content["standard"]["settings"][0]["value"] = 0.3
    (tmp_path / "tuned.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match="was not trained with the architecture.resid_pdrop and"):
        read_experiment(tmp_path)


def test_places_of_a_sweep_name_what_is_not_the_arms_own(swept, tmp_path):
    swept["arms"].pop("plain")
    plan = Plan.of(swept)
    search = Search.of(plan, "standard")
    assert search.own == (0.0, 0.0)
    jobs = sweep_jobs(plan, tmp_path, {"standard": [Try(1e-2, (0.0, 0.0)), Try(1e-2, (0.6, 0.5))]})
    first, second = jobs
    assert first.place == "sweep/standard/lr-0.01"
    dropout = "architecture.resid_pdrop+architecture.embd_pdrop-0.6"
    assert second.place == f"sweep/standard/lr-0.01-{dropout}-optimizer.weight_decay-0.5"
    assert second.run.architecture.embd_pdrop == second.run.architecture.resid_pdrop == 0.6
    assert second.run.optimizer.weight_decay == 0.5


@pytest.mark.parametrize(
    ("also", "sentence"),
    [
        ({DECAY: [0.0]}, "expected at least two increasing numbers"),
        ({DECAY: [0.5, 0.0]}, "expected at least two increasing numbers"),
        ({DECAY: [0.0, math.inf]}, "expected at least two increasing numbers"),
        ({DECAY: 0.5}, "also is .*; expected a table of names, each a list"),
        ([DECAY], "also is .*; expected a table of names, each a list"),
        ({DECAY: [0.1, 0.5]}, "optimizer.weight_decay is 0 in its runs; include that value"),
        ({"optimizer.weight_deca": [0.0, 0.1]}, "no setting 'optimizer.weight_deca'. Did you mean"),
        ({"optimizer.name": [0.0, 0.1]}, "optimizer.name is 'adamw'; only numbers can be swept"),
        (
            {"optimizer.learning_rate": [0.1, 0.2]},
            "cannot be swept: its values belong in learning_rates",
        ),
        ({"steps": [10, 20]}, "steps cannot be swept: the plan sets the number of steps"),
        (
            {DECAY: [0.0, 1.0], f"{DECAY} and optimizer.clip": [0.0, 1.0]},
            "is listed twice",
        ),
        ({f"{DECAY} and optimizer.clip": [0.0, 1.0]}, "have different values"),
        ({DROPOUT: [0.0, 1.0]}, "resid_pdrop is 1.0; expected a probability"),
    ],
)
def test_settings_that_cannot_be_swept_are_sentences(swept, also, sentence):
    for place in (swept["sweep"], swept["arms"]["plain"]):
        with pytest.raises(ConfigError, match=sentence):
            Plan.of({**swept, **_with(swept, place, also)}).checked()


def _with(fields, place, also):
    """The tables of a plan, with settings in its sweep or in an arm."""
    if place is fields["sweep"]:
        return {"sweep": {**place, "also": also}}
    return {"arms": {**fields["arms"], "plain": {**place, "also": also}}}


def test_settings_of_an_arm_need_a_sweep_and_fresh_weights(swept):
    with pytest.raises(ConfigError, match="plain: also needs a sweep, but the plan has none"):
        Plan.of({**swept, "sweep": None})
    start = {"model": "standard", "start": {"arm": "x/y"}}
    with pytest.raises(
        ConfigError, match="is set by the base model; an arm with a start cannot sweep it"
    ):
        Plan.of({**swept, "arms": {"standard": {"model": "standard"}, "later": start}}).checked()
