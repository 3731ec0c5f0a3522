"""Configs of Levanter with our models: what is read, what is added, what is refused in sentences."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qkvflow.config import ConfigError, read_run
from qkvflow.config.yaml_files import read_yaml
from qkvflow.levanter.run import check_cuts, cut_mesh, prepared, read_config
from tests.levanter.support import CONFIG, ROOT, call, environment, write_files

CONFIGS = sorted((ROOT / "configs").glob("levanter_*.yaml"))


def changed(folder, **sections):
    """The path of a config with some sections changed."""
    content = {name: {**CONFIG[name], **sections.get(name, {})} for name in CONFIG}
    (folder / "changed.yaml").write_text(yaml.safe_dump({**sections, **content}))
    return str(folder / "changed.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_of_the_repository_is_read(path):
    config = prepared(read_config(["--config", str(path)]))
    own = path.with_name(path.name.replace("levanter_", "iclr_"))
    if own.is_file():
        run = read_run(own)
        assert config.model.architecture == run.architecture
        assert (config.model.name, config.model.max_seq_len) == (run.model, run.length)
        trainer = config.trainer
        assert (trainer.train_batch_size, trainer.num_train_steps) == (run.batch_size, run.steps)
        inner, ours = config.optimizer.inner, run.optimizer
        rates = (inner.learning_rate, inner.weight_decay, inner.warmup, inner.min_lr_ratio)
        assert rates == (ours.learning_rate, ours.weight_decay, ours.warmup, ours.final)
        assert inner.beta2 == ours.options.get("b2", 0.999)


def test_options_of_levanter_stand_over_the_file(tmp_path):
    further = ["--trainer.num_train_steps", "9", "--model.architecture", "{num_layers: 5}"]
    config = read_config(["--config", changed(tmp_path), *further])
    assert config.trainer.num_train_steps == 9
    assert (config.model.architecture.num_layers, config.model.architecture.hidden_dim) == (5, 32)


def test_our_axes_are_cut_unless_the_config_says_otherwise(tmp_path):
    mesh = {"mesh": {"shared_mapping": {"mlp": "data"}}}
    config = read_config(["--config", changed(tmp_path, trainer=mesh)])
    mapping = cut_mesh(config.trainer.mesh).resolved_param_mapping
    names = ("kv_heads", "ssm_inner", "vocab", "mlp", "embed")
    assert [mapping[name] for name in names] == ["model", "model", "model", "data", "data"]


def test_what_cannot_be_cut_is_refused(tmp_path):
    mesh = {"mesh": {"axes": {"data": 1, "model": 3}}}
    config = read_config(["--config", changed(tmp_path, trainer=mesh)])
    with pytest.raises(ConfigError, match="kv_heads is 4, not divisible by trainer.mesh.axes.model, 3"):
        check_cuts(config.model.shapes(1), config.trainer.mesh)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"architecture": {"hiden_dim": 3}}}, "Did you mean 'hidden_dim'"),
        ({"model": {"architecture": {"hidden_dim": 10, "num_heads": 3}}}, "hidden_dim 10 is not div"),
        ({"model": {"architecture": {"vocab_size": 10}}}, "vocab_size is set by the tokenizer"),
        ({"model": {"architecture": "standard"}}, "expected a table of fields"),
        ({"model": {"name": "standart"}}, "Did you mean 'standard'"),
        ({"model": {"type": "lama"}}, "lama"),
        ({"model": {"layers": 3}}, "layers"),
        ({"trainer": {"steps": 3}}, "steps"),
        ({"trainer": {"mp": "p=f32,c=bf16"}}, "time networks need float32"),
        ({"optimizer": {"weight_decay_modules": ["a"]}}, "weight_decay_modules is set"),
        ({"architecture": {}}, "A config of `qkvflow train` has other fields"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(tmp_path, sections, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("(", ".")):
        prepared(read_config(["--config", changed(tmp_path, **sections)]))


def test_a_config_of_ours_is_none_of_levanter_s_nor_the_other_way_round():
    with pytest.raises(ConfigError, match=r"configs/levanter_small.yaml shows these"):
        read_config(["--config", str(ROOT / "configs" / "tiny.yaml")])
    with pytest.raises(ConfigError, match="there is no field 'trainer'"):
        read_run(ROOT / "configs" / "levanter_small.yaml")
    assert "model" in read_yaml(ROOT / "configs" / "levanter_small.yaml")


WAKES_NOTHING = """
import sys, jax
from qkvflow.levanter.run import prepared, read_config
prepared(read_config(["--config", sys.argv[1]]))
jax.distributed.initialize("127.0.0.1:" + sys.argv[2], 1, 0)
print(jax.process_count())
"""


def test_checks_leave_jax_asleep_until_processes_have_found_each_other(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "-W", "ignore", "-c", WAKES_NOTHING, changed(tmp_path), port]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr[-2000:]


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    write_files(tmp_path)
    done = call(tmp_path, "train", "--config", "other.yaml")
    assert done.returncode == 2
    assert "other.yaml" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(tmp_path / "checkpoints").exists()
