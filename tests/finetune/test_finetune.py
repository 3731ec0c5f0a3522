"""Fine-tuning from end to end, adapters apart from their base, and sentences about the rest."""

import json
import shutil

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qkvflow
from qkvflow.config import ConfigError, write_run
from qkvflow.config.yaml_files import recorded_run
from qkvflow.data import DataError
from qkvflow.files import FileError
from qkvflow.finetune import FinetuneConfig, finetune, finetuning_run, load_adapter, save_adapter
from qkvflow.models import adapter_paths, unroll
from qkvflow.models.paths import arrays_of
from qkvflow.models.storage import save_model
from qkvflow.nn.time_embed import layer_times
from qkvflow.train import Sink, load_model
from qkvflow.train.resume import own_text
from tests.support import difference, random_model, small_config
from tests.train.support import records, tiny_run, tiny_tuning, trained_base

IDS = hax.named(jnp.array([[1, 2, 3, 4, 5, 6]]), ("batch", "position"))


@pytest.fixture(scope="module")
def tuned(base, tmp_path_factory):
    """Fine-tunings of one base: results by name, each in a directory of that name."""
    directory = tmp_path_factory.mktemp("tuned")
    chosen = {
        "lora": {"method": "lora", "maps": ("attention.*", "mlp.up")},
        "deep": {"method": "lora", "depth": 4, "steps": 3},
        "curve": {"method": "depth_lora"},
        "norms": {"method": "embeddings", "steps": 3},
        "full": {"depth": 3, "steps": 3},
    }
    checkpoint, text = base
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("QKVFLOW_CACHE", str(directory / "cache"))
        return directory, {
            name: finetune(tiny_tuning(checkpoint, text, **changes), directory / name)
            for name, changes in chosen.items()
        }


def test_what_a_fine_tuning_leaves(base, tuned):
    directory, found = tuned
    for name, result in found.items():
        assert result.outcome.finished
        assert np.isfinite([result.before, result.after]).all()
        kept = json.loads((directory / name / "finetune.json").read_text())
        assert (kept["before"], kept["after"]) == (result.before, result.after)
        assert records(directory / name, "final")[0]["loss"] == result.after
        assert (directory / name / "adapter").is_dir() == (name != "full")
    assert found["full"].trained == found["full"].parameters
    assert found["lora"].after < found["lora"].before


def test_the_adapter_is_small_and_holds_nothing_of_the_base(tuned):
    directory, found = tuned
    model = load_model(directory / "lora")
    size = (directory / "lora" / "adapter" / "adapter.safetensors").stat().st_size
    trained = sum(arrays_of(model)[path].size for path in adapter_paths(model))
    assert found["lora"].trained == trained
    assert size < 4 * trained + 200 * (len(adapter_paths(model)) + 1)
    content = json.loads((directory / "lora" / "adapter" / "adapter.json").read_text())
    assert content["adapter"]["maps"] == ["attention.*", "mlp.up"]
    assert content["adapter"]["rank"] == 2
    assert content["start"]["depth"] is None


@pytest.mark.parametrize("file", ["adapter.safetensors", "adapter.json"])
def test_a_damaged_adapter_is_written_again(base, tuned, tmp_path, file):
    out = shutil.copytree(tuned[0] / "lora", tmp_path / "lora", symlinks=True)
    whole = (out / "adapter" / "adapter.safetensors").read_bytes()
    (out / "adapter" / file).write_bytes((out / "adapter" / file).read_bytes()[:-7])
    again = tiny_tuning(*base, method="lora", maps=("attention.*", "mlp.up"))
    with pytest.warns(UserWarning, match=f"{file} .*The adapter is written again"):
        assert finetune(again, out).outcome.there_before
    assert (out / "adapter" / "adapter.safetensors").read_bytes() == whole
    assert (out / "bad-adapter").is_dir()


@pytest.mark.parametrize("losses", [[], {}, {"before": "x", "after": None}, {"before": 1.0}])
def test_losses_that_are_none_are_a_sentence(base, tuned, tmp_path, losses):
    out = shutil.copytree(tuned[0] / "full", tmp_path / "full", symlinks=True)
    (out / "finetune.json").write_text(json.dumps(losses))
    with pytest.raises(FileError, match="finetune.json holds no losses before and after"):
        finetune(tiny_tuning(*base, depth=3, steps=3), out)


@pytest.mark.parametrize("name", ["lora", "deep", "curve", "norms"])
def test_many_adapters_over_one_base(base, tuned, name):
    directory, _ = tuned
    own = qkvflow.load(base[0])
    model = load_adapter(own, directory / name / "adapter")
    assert difference(model(IDS).array, load_model(directory / name)(IDS).array) == 0.0
    assert difference(model(IDS).array, own(IDS).array) > 1e-4


@pytest.mark.parametrize("depth", [1, 5])
def test_depth_lora_trained_at_one_depth_is_used_at_another(base, tuned, depth):
    """From the base at that depth, and from the curves themselves."""
    directory, _ = tuned
    own = qkvflow.load(base[0])
    there = load_adapter(own, directory / "curve" / "adapter", depth=depth)
    assert there.config.num_layers == depth
    expected = load_model(directory / "curve")(IDS, t=layer_times(depth)).array
    error = difference(there(IDS).array, expected)
    assert error < 1e-5, error
    assert difference(there(IDS).array, unroll(own, depth)(IDS).array) > 1e-4


def test_an_adapter_of_another_base_is_refused_with_both_digests(base, tuned, tmp_path):
    directory, _ = tuned
    other = qkvflow.load(trained_base(tmp_path, seed=1))
    content = json.loads((directory / "lora" / "adapter" / "adapter.json").read_text())
    with pytest.raises(FileError, match="another base") as error:
        load_adapter(other, directory / "lora" / "adapter")
    assert content["base_digest"][:12] in str(error.value)


def test_adapters_that_cannot_be_used(base, tuned, tmp_path):
    directory, _ = tuned
    own = qkvflow.load(base[0])
    with pytest.raises(ConfigError, match="trained at 4 layers"):
        load_adapter(own, directory / "deep" / "adapter", depth=5)
    with pytest.raises(ValueError, match="expected a whole number of layers"):
        load_adapter(own, directory / "curve" / "adapter", depth=0)
    with pytest.raises(FileError, match="is not there"):
        load_adapter(own, tmp_path / "none")
    run = finetuning_run(tiny_tuning(*base, method="lora", maps=("attention.*", "mlp.up")))
    with pytest.raises(FileError, match="already exists"):
        save_adapter(load_model(directory / "lora"), run.start, directory / "lora" / "adapter")
    run = finetuning_run(tiny_tuning(*base, depth=3))
    with pytest.raises(ConfigError, match="save the model itself"):
        save_adapter(load_model(directory / "full"), run.start, tmp_path / "new")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"depth": 0}, ConfigError, "depth is 0; expected a whole number of layers"),
        (
            {"method": "lora", "maps": ("atention.*",)},
            ConfigError,
            "'atention.*' matches no linear map",
        ),
        ({"method": "lora", "also": ("wte",)}, ConfigError, "also: 'wte' matches no array"),
        ({"method": "lora", "rank": 0}, ConfigError, "rank is 0"),
        ({"checkpoint": "none"}, FileError, "none is not there: expected a directory with config.json"),
        ({"data": "embeded"}, DataError, "Did you mean 'embedded'"),
        ({"method": "half"}, ConfigError, "method is 'half'"),
    ],
)
def test_what_cannot_be_done_is_said_before_work_starts(base, tmp_path, changes, error, words):
    checkpoint, text = base
    fields = {"data": text, **changes}
    with pytest.raises(error, match=words.replace("*", r"\*")):
        finetune(tiny_tuning(fields.pop("checkpoint", checkpoint), **fields), tmp_path / "out")
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_an_adapted_base_needs_a_depth_for_another_adapter(base, tuned, tmp_path):
    directory, _ = tuned
    with pytest.raises(ConfigError, match="has adapters already"):
        finetuning_run(tiny_tuning(directory / "lora", base[1], method="lora"))
    run = finetuning_run(tiny_tuning(directory / "lora", base[1], method="lora", depth=2, rank=3))
    assert run.architecture.adapter.rank == 3


def test_the_adaptive_integrator_has_no_other_depth(base, tmp_path):
    config = small_config(integrator="adaptive", vocab_size=256)
    model = random_model("time_indexed_mlp", config)
    save_model(model, tmp_path / "adaptive", tokenizer='{"kind": "byte"}')
    with pytest.raises(ConfigError, match="fixed-step"):
        finetuning_run(tiny_tuning(tmp_path / "adaptive", base[1], depth=3))
    run = finetuning_run(tiny_tuning(tmp_path / "adaptive", base[1], method="lora"))
    assert run.architecture.adapter.name == "lora"


def test_unknown_characters_are_counted(base, tmp_path):
    notes = []

    class Notes(Sink):
        def write(self, record):
            if record["kind"] == "note":
                notes.append(record["text"])

    text = tmp_path / "other.txt"
    text.write_text("weights are curves " * 300 + "ü" + "weights are curves " * 200)
    finetune(tiny_tuning(base[0], text, steps=0), tmp_path / "out", [Notes()])
    assert "The tokenizer char loses text of other.txt: 2 of " in notes[0]
    text.write_text("weights are ü curves " * 300)
    with pytest.raises(DataError, match=r"or a model with one; or allow it .*--least-coverage 0.9"):
        finetune(tiny_tuning(base[0], text), tmp_path / "other")


def test_the_text_is_that_of_the_base_where_none_is_named(base, tmp_path):
    of_base = recorded_run(base[0] / "run.yaml")
    for place in (base[0], base[0] / "final", base[0] / "checkpoints" / "best"):
        run = finetuning_run(FinetuneConfig(checkpoint=str(place)))
        assert (run.data, run.documents) == (of_base.data, of_base.documents)
    shutil.copytree(base[0] / "final", tmp_path / "apart")
    with pytest.raises(ConfigError, match="was trained on; name one with --data"):
        finetuning_run(FinetuneConfig(checkpoint=str(tmp_path / "apart")))


def test_documents_are_as_many_as_in_the_run_where_the_text_is_the_same(tmp_path):
    """Of any other text no more than usual: the run may have taken all of a small one."""
    run = tiny_run("hf:some/thing", documents=None)
    (tmp_path / "run").mkdir()
    write_run(run, tmp_path / "run" / "run.yaml")
    save_model(random_model("shared", small_config()), tmp_path / "run" / "final")
    assert own_text(tmp_path / "run", None, "run") == ("hf:some/thing", None)
    assert own_text(tmp_path / "run", "hf:some/thing", "run") == ("hf:some/thing", None)
    assert own_text(tmp_path / "run", None, 5) == ("hf:some/thing", 5)
    assert own_text(tmp_path / "run", "hf:other/thing", "run") == ("hf:other/thing", 10_000)
    assert own_text(tmp_path / "run", "hf:other/thing", None) == ("hf:other/thing", None)
