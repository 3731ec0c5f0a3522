"""Runs: YAML in and out, overrides, every mistake a sentence, and all files of configs/."""

import dataclasses
import time
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

from qkvflow.config import (
    ConfigError,
    Gpt2Config,
    OptimizerConfig,
    RunConfig,
    read_recipe,
    read_run,
    write_run,
)
from qkvflow.config.yaml_files import RECIPES, merged, read_yaml_text, yaml_text
from qkvflow.experiments.plan import read_plan
from qkvflow.models import build_model, count_parameters
from qkvflow.train.optimizer import make_schedule
from qkvflow.train.step import Learner

ROOT = Path(__file__).parent.parent.parent
CONFIGS = sorted(set((ROOT / "configs").glob("*.yaml")) - set((ROOT / "configs").glob("levanter_*")))
BOMB = "".join(
    f"{name}: &{name} [{', '.join(['*' + of] * 9)}]\n" for of, name in zip("abcdefgh", "bcdefghi")
)
BOMB = f"a: &a [{'x, ' * 8}x]\n{BOMB}"
"""A few hundred bytes that are tens of millions once they are written out."""


def written(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_file_is_read_and_builds_abstractly(path):
    run = read_run(path)
    vocab_size = run.bpe_size if run.tokenizer == "bpe" else 100
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax needs it
        learner = Learner.of(run, run.model_config(vocab_size))
    assert count_parameters(learner.model).total > 10_000
    assert learner.model.config.max_position_embeddings == run.length


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_run_of_a_few_steps_warms_up_and_comes_down(path):
    optimizer = dataclasses.replace(read_run(path), steps=20).optimizer
    rates = np.asarray(make_schedule(optimizer, 20)(np.arange(20, dtype=np.float32)))
    assert rates.max() == pytest.approx(optimizer.learning_rate)
    assert rates.argmax() < 10 and rates[-1] < 0.5 * rates.max()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("seeds", (256, 4, 6, 128, 8, 3e-4)),
        ("iclr_wikitext103_small", (768, 12, 12, 1024, 256, 6e-4)),
        ("iclr_wikitext103_medium", (1024, 16, 24, 1024, 256, 3e-4)),
        ("iclr_openwebtext_small", (768, 12, 12, 1024, 512, 6e-4)),
        ("iclr_openwebtext_medium", (1024, 16, 24, 1024, 256, 3e-4)),
        ("iclr_openwebtext_large", (1280, 20, 36, 1024, 256, 3e-4)),
        ("iclr_llama_1b", (2048, 16, 16, 2048, 256, 3e-4)),
    ],
)
def test_the_published_settings_are_in_the_files(name, shape):
    run = read_run(ROOT / "configs" / f"{name}.yaml")
    a = run.architecture
    found = (a.hidden_dim, a.num_heads, a.num_layers, run.length, run.batch_size)
    assert (*found, run.optimizer.learning_rate) == shape
    if name.startswith("iclr"):
        assert run.model == "tong_neuralode"
        assert a.compute_dtype == "bfloat16"
        assert run.optimizer.final == 0.1


def test_the_llama_config_has_the_published_width_of_the_mlp():
    run = read_run(ROOT / "configs" / "iclr_llama_1b.yaml")
    assert run.architecture.Mlp.size == 8192
    assert run.optimizer.options == {"b2": 0.95}


def test_the_setting_of_the_seed_documents_is_that_of_their_plan():
    run, planned = (
        read_run(ROOT / "configs" / "seeds.yaml"),
        read_plan("seeds").arm("time_indexed_mlp").run,
    )
    run = dataclasses.replace(run, keep=planned.keep)
    run = dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, warmup=None))
    assert run == planned


@pytest.mark.parametrize("name", ["tiny", "wikitext2", "wikitext103"])
def test_small_runs_are_trained_as_the_recipe_says(name):
    run, recipe = read_run(ROOT / "configs" / f"{name}.yaml"), RunConfig.from_dict(read_recipe())
    assert run.optimizer == recipe.optimizer != OptimizerConfig()
    assert run.architecture.flavour == recipe.architecture.flavour == "llama"


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_a_recipe_says_how_to_train_and_leaves_open_what(name):
    fields = read_recipe(name)
    assert fields.keys() <= {"architecture", "optimizer"}
    assert not fields["architecture"].keys() & {"hidden_dim", "num_heads", "num_layers", "weights"}
    run = RunConfig.from_dict(fields)
    assert run.optimizer.learning_rate == fields["optimizer"]["learning_rate"]


def test_fields_of_a_file_are_put_on_those_of_its_recipe(tmp_path):
    own = "recipe: modern\nsteps: 7\noptimizer: {final: 0.5}\n"
    run, plain = read_run(written(tmp_path, own)), RunConfig.from_dict(read_recipe("modern"))
    assert (run.steps, run.optimizer.final) == (7, 0.5)
    assert dataclasses.replace(run.optimizer, final=plain.optimizer.final) == plain.optimizer
    assert read_run(written(tmp_path, "steps: 7\n")).optimizer == OptimizerConfig(), "none is named"


@pytest.mark.parametrize(
    ("name", "hint"), [("modrn", "Did you mean 'modern'?"), ("[1]", "[1]"), ("", "")]
)
def test_a_recipe_that_is_not_there_is_a_sentence(tmp_path, name, hint):
    with pytest.raises(ConfigError) as error:
        read_run(written(tmp_path, f"recipe: {name}\n"))
    assert "run.yaml cannot be used" in str(error.value) and "recipe is " in str(error.value)
    assert hint in str(error.value)


def test_merging_tables():
    assert merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}, "e": 5}) == {
        "a": 1,
        "b": {"c": 4, "d": 3},
        "e": 5,
    }


def test_a_run_survives_yaml(tmp_path):
    run = RunConfig(
        model="hybrid",
        trackers=("tensorboard",),
        architecture=Gpt2Config(parts=("mlp",), hidden_dim=32),
        optimizer=OptimizerConfig(learning_rate=1e-4, options={"b2": 0.9}),
    )
    write_run(run, tmp_path / "run.yaml")
    assert read_run(tmp_path / "run.yaml") == run


def test_what_is_written_is_read_be_it_the_same_list_twice_or_a_text_like_a_number():
    shared = [1, 2]
    content = {"a": shared, "b": shared, "c": "3e-4", "d": "2024-01-01", "e": 3e-4}
    assert read_yaml_text(yaml_text(content)) == content


def test_numbers_as_people_write_them(tmp_path):
    run = read_run(written(tmp_path, "optimizer: {learning_rate: 3e-4, weight_decay: 1E+0, clip: 0}"))
    assert run.optimizer.learning_rate == 3e-4
    assert run.optimizer.weight_decay == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: many", "steps is 'many'; expected int"),
        ("stepz: 3", "no field 'stepz'. Did you mean 'steps'?"),
        ("architecture: {hiden_dim: 3}", "architecture: there is no field 'hiden_dim'. Did you mean"),
        ("architecture: 7", "architecture is 7; expected a table of fields"),
        ("optimizer: {learning_rate: fast}", "optimizer: learning_rate is 'fast'; expected float"),
        ("optimizer: {learning_rate: -1}", "learning_rate is -1; expected a number above 0"),
        ("batch_size: 8\naccumulate: 3", "not divisible by accumulate 3"),
        ("{steps: 10, continued: [4, 4]}", "continued is [4, 4] in a run of 10 steps; expected the"),
        ("{steps: 10, continued: [10]}", "continued is [10] in a run of 10 steps"),
        ("seed: -1", "seed is -1; expected at least 0"),
        ("seed: 4294967296", "seed is 4294967296; expected at least 0, below 2,147,483,648"),
        ("{seed: 2147483647, seeds: 2}", "the last of 2 seeds is 2147483648; expected at most"),
        ("seeds: 1000000000", "seeds is 1000000000; expected 1 to 1,000"),
        ("batch_size: 1000000000000", "batch_size is 1000000000000; expected at least 1, below"),
        ("bpe_size: 100000000000000000000", "expected 1 to 1,048,576"),
        ("depths: [4, 1000000000]", "depths is [4, 1000000000]; expected distinct numbers, at least 1"),
        ("architecture: {vocab_size: 99}", "vocab_size is set by the tokenizer in a run; leave it out"),
        ("trackers: [mlflow]", "trackers is ('mlflow',); expected a list, each one of"),
        ("data: !!python/object/apply:os.system [id]", "not plain YAML"),
        ("data: !!python/name:os.system", "not plain YAML"),
        ("steps: 1\nsteps: 2", "'steps' is given twice"),
        ("a: [", "not plain YAML"),
        ("", "is empty"),
        ("- 1", "is a list"),
        ("? [1]\n: 2", "no"),
        (BOMB, "*a is an alias; write out what it stands for"),
        ("steps: !!int abc", "is a tag; leave it out"),
        ("steps: !!timestamp 2024-99-99", "is a tag; leave it out"),
        ("steps: 2024-99-99", "steps is '2024-99-99'; expected int"),
        ("steps: 0x_", "'0x_' is not a usable int"),
        ("steps: " + "1" * 5000, "is not a usable int"),
        ("steps: 1" + ":59" * 5000, "is not a usable int"),
        ("a: " + "[" * 3000 + "]" * 3000, "tables or lists are nested more than 50 deep"),
        ("? " * 3000, "tables or lists are nested more than 50 deep"),
        ("a: " + "[]," * 100_000, "it has more than 200,000 characters"),
        ("optimizer: {options: {b1: .inf}}", "options.b1 is inf; expected a finite number"),
        ("optimizer: {schedule_options: {power: .nan}}", "power is nan; expected a finite number"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        read_run(written(tmp_path, text))
    assert words in str(error.value)
    assert "run.yaml" in str(error.value)


@pytest.mark.parametrize("part", ["9", "9_", "1:", ".1", "1e"])
def test_a_long_number_is_refused_within_a_second(tmp_path, part):
    path = written(tmp_path, "steps: " + (part * 190_000)[:190_000])
    begin = time.perf_counter()
    with pytest.raises(ConfigError):
        read_run(path)
    assert time.perf_counter() - begin < 1


def test_a_file_that_is_not_there_or_binary(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_run(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="not plain YAML"):
        read_run(tmp_path / "binary.yaml")


def test_all_problems_of_a_file_are_named_at_once(tmp_path):
    text = "steps: 0\narchitecture: {num_heads: 3}\noptimizer: {clip: -1}"
    with pytest.raises(ConfigError) as error:
        read_run(written(tmp_path, text))
    for words in ("steps is 0", "not divisible by num_heads 3", "clip is -1"):
        assert words in str(error.value)


def test_a_model_of_a_run_has_the_tokenizer_s_vocabulary_and_the_run_s_length():
    run = RunConfig(length=17, architecture=Gpt2Config(hidden_dim=32))
    model = eqx.filter_eval_shape(build_model, run.model, run.model_config(31), key=jax.random.key(0))
    assert model.transformer.wte.weight.array.shape == (31, 32)
    assert model.transformer.wpe.weight.array.shape == (17, 32)
