"""The line for pip: in a clone, and where there is none."""

import importlib.metadata
import tomllib

from qkvflow import extras
from qkvflow.extras import pip_line


def test_in_a_clone_the_clone_is_installed(tmp_path, monkeypatch):
    root = extras._CLONE
    monkeypatch.chdir(root)
    assert pip_line("data") == 'pip install -e ".[data]"'
    monkeypatch.chdir(tmp_path)
    assert pip_line("data") == f'pip install -e "{root}[data]"'
    known = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"data", "slurm", "tensorboard", "wandb", "lm-eval", "peers"} <= known.keys()


def test_elsewhere_the_packages_of_the_extra_are(tmp_path, monkeypatch):
    lines = ["jax>=0.10", 'datasets>=3.0; extra == "data"', "submitit>=1.5; extra == 'slurm'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [*lines, 'a>=1; extra == "data"'])
    monkeypatch.setattr(extras, "_CLONE", tmp_path)
    assert pip_line("data") == 'pip install "datasets>=3.0" "a>=1"'
