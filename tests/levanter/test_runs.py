"""Runs on one device: a model comes back with the same loss to the last digit, and starts a run."""

import json
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from levanter.checkpoint import latest_checkpoint_path, load_checkpoint
from levanter.layers.attention import AttentionMask

import qkvflow
from qkvflow.config import ConfigError
from qkvflow.data import tokenizer_from_dict
from qkvflow.files import FileError
from qkvflow.levanter import QkvflowLM
from qkvflow.levanter.checkpoints import check_same, newest, read_run
from qkvflow.levanter.run import read_config
from qkvflow.models.paths import arrays_of
from tests.levanter.support import ROOT, STEPS, call, difference, train, write_files
from tests.levanter.test_model import loss_of_levanter
from tests.support import token_ids


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of some steps, and its losses."""
    folder = tmp_path_factory.mktemp("trained")
    write_files(folder)
    return folder, train(folder, "run")


@pytest.fixture(scope="module")
def imported(trained):
    folder, _ = trained
    options = ("--run", "checkpoints/run", "--config", "run.yaml", "--out", "models/run")
    done = call(folder, "import", *options)
    assert done.returncode == 0, done.stderr
    assert "a model with 2 layers" in done.stdout
    return folder / "models" / "run"


def config_of(folder, monkeypatch, *options):
    monkeypatch.chdir(folder)
    return read_config(["--config", "run.yaml", *options])


def test_it_learns(trained):
    _, losses = trained
    assert losses[STEPS - 1] < losses[2] - 0.2


def test_what_comes_back_has_the_loss_of_levanter_s_own_reading(trained, imported, monkeypatch):
    config = config_of(trained[0], monkeypatch)
    like, mesh = QkvflowLM(config.model.shapes(260), config.model), Mesh(jax.devices()[:1], ("data",))
    path = latest_checkpoint_path("checkpoints/run")
    theirs = load_checkpoint(like, path, subpath="model", axis_mapping={}, mesh=mesh)
    ours = QkvflowLM(qkvflow.load(imported), config.model)
    ids = token_ids(ours.model.config, length=32)
    losses = [
        float(jax.jit(lambda m: loss_of_levanter(m, ids, AttentionMask.causal()))(model))
        for model in (theirs, ours)
    ]
    assert losses[0] == losses[1]
    own, other = arrays_of(ours.model), arrays_of(theirs.model)
    assert all(np.array_equal(own[path], other[path]) for path in own)


def test_its_tokenizer_comes_with_it(imported):
    tokenizer = tokenizer_from_dict(json.loads((imported / "tokenizer.json").read_text()))
    assert tokenizer.decode(tokenizer.encode("curve é")) == "curve é"
    assert tokenizer.vocab_size == 260


def test_a_run_starts_from_a_model(trained, imported, monkeypatch):
    folder = trained[0]
    options = ("--checkpoint", imported, "--config", "run.yaml", "--out", "starts/run")
    done = call(folder, "export", *options)
    assert done.returncode == 0, done.stderr
    start = done.stdout.split("--config run.yaml ")[1].split()
    stands_still = ("--optimizer.learning_rate", "1e-12", "--trainer.num_train_steps", "1")
    train(folder, "second", *start, *stands_still)
    config = config_of(folder, monkeypatch)
    before = arrays_of(qkvflow.load(imported))
    after = arrays_of(read_run(folder / "checkpoints" / "second", config))
    assert all(np.allclose(before[path], after[path], rtol=0, atol=1e-9) for path in before)


def test_a_run_goes_on_from_its_newest_whole_checkpoint(trained):
    """One without its last file is passed over."""
    folder, whole = trained
    shutil.copytree(folder / "checkpoints" / "run", folder / "checkpoints" / "again")
    for step in range(3, STEPS):
        (folder / "checkpoints" / "again" / f"step-{step}" / "metadata.json").unlink(missing_ok=True)
    rest = train(folder, "again")
    assert min(rest) == 3
    assert difference(rest, {step: whole[step] for step in rest}) == 0.0


def test_bad_input_is_refused_in_sentences(trained, imported, monkeypatch, tmp_path):
    folder = trained[0]
    config = config_of(folder, monkeypatch)
    with pytest.raises(FileError, match="Did you mean checkpoints/"):
        newest(folder.joinpath("checkpoints").relative_to(folder))
    with pytest.raises(FileError, match="There is no checkpoint of Levanter in"):
        read_run(tmp_path, config)
    narrow = config_of(folder, monkeypatch, "--model.architecture", "{hidden_dim: 64}")
    with pytest.raises(FileError, match=r"holds another model: lm_head.weight is \(32, 260\) there"):
        read_run(folder / "checkpoints" / "run", narrow)
    shutil.copytree(folder / "bytes", folder / "fewer", dirs_exist_ok=True)
    shutil.copy(ROOT / "configs" / "bytes" / "tokenizer.json", folder / "fewer")
    fewer = config_of(folder, monkeypatch, "--data.tokenizer", "fewer")
    with pytest.raises(ConfigError, match="has 260 token ids, the tokenizer fewer 257"):
        read_run(folder / "checkpoints" / "run", fewer)
    other = config_of(folder, monkeypatch, "--model.architecture", "{activation_function: relu}")
    with pytest.raises(ConfigError, match="activation_function is 'relu', that of the model None"):
        check_same(qkvflow.load(imported).config, other.model.shapes(260).config)
