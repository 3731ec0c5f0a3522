"""docs/extending.md, from outside of the package: its file, its run, its plan and its commands."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.documents
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def in_folder(folder, *command):
    """Run a command of the page in a process of its own, as a user does."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "QKVFLOW_CACHE": str(folder / "cache"),
    }
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the page says to write, outside of the repository."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "my_idea.py").write_text("\n\n".join(blocks("python")))
    run, plan = blocks("yaml")
    (folder / "my_run.yaml").write_text(run)
    (folder / "my_plan.yaml").write_text(plan)
    return folder


@pytest.fixture(scope="module")
def said(folder):
    """What every command of the page prints, by the command's name."""
    said = {}
    for line in blocks("bash")[0].strip().splitlines():
        found = in_folder(folder, "-m", *shlex.split(line))
        assert found.returncode == 0, f"{line}\n{found.stdout}\n{found.stderr}"
        said[" ".join(line.split()[1:3])] = said[line.split()[1]] = found.stdout
    return said


def test_a_family_is_about_twenty_lines():
    family = re.sub(r'""".*?"""|#.*', "", blocks("python")[0].split("class Line")[1])
    assert len([line for line in family.splitlines() if line.strip()]) <= 20


def test_it_trains_generates_and_is_analysed(folder, said):
    assert "nats/token" in said["train"]
    assert "12*12=" in said["generate"]
    assert "mlp.down" in said["analyze sizes"]
    assert "spread of modulators" in said["analyze modulation"]
    with np.load(folder / "analysis" / "sizes.npz") as arrays:
        assert arrays["attention.qkv"].shape == (2,)


def test_it_is_compared_over_seeds(folder, said):
    assert "line" in said["experiment cost"]
    record = json.loads((folder / "results/line/runs/line/seed-0.json").read_text())
    assert "bilinear" in str(record["run"]["architecture"]["parts"])
    assert re.search(r"line.*shared|shared.*line", said["experiment run"], re.DOTALL)


COUNTED = """
import json, sys, jax, qkvflow
from qkvflow.plugins import load_plugins
from qkvflow.models import count_parameters, unroll
load_plugins(["my_idea.py"])
import numpy as np
from qkvflow.config import Gpt2Config
from qkvflow.models import build_model, forward_flops
shape = dict(hidden_dim=16, num_heads=2, num_layers=2, vocab_size=13)
models = {
    name: build_model("standard", Gpt2Config(weights=name, **shape), key=jax.random.key(0))
    for name in ("line", "shared", "per_layer")
}
table = models["line"].parameters()
loaded = qkvflow.load("runs/line")
unrolled = qkvflow.load("models/line")
import haliax as hax
ids = hax.named(np.arange(6, dtype=np.int32)[None], ("batch", "position"))
same = unroll(loaded, 3)
json.dump({
    "parameters": {name: count_parameters(model).total for name, model in models.items()},
    "operations": {name: forward_flops(model, 1, 16) for name, model in models.items()},
    "decays": {path: p.decays for path, p in table.items() if "mlp.part.up" in path},
    "weights": [str(loaded.config.weights), str(unrolled.config.weights)],
    "difference": float(np.abs(same(ids).array - unrolled(ids).array).max()),
    "moved": float(np.abs(loaded.transformer.blocks.parts["mlp"].part.up.slope.weight.array).max()),
}, sys.stdout)
"""


@pytest.mark.usefixtures("said")
def test_it_counts_decays_unrolls_saves_and_loads(folder):
    found = in_folder(folder, "-c", COUNTED)
    assert found.returncode == 0, found.stderr
    facts = json.loads(found.stdout)
    parameters, operations = facts["parameters"], facts["operations"]
    assert parameters["line"] == parameters["per_layer"], "two layers' worth, and there are two layers"
    assert operations["line"] > operations["shared"]
    assert facts["decays"]["transformer.blocks.parts.mlp.part.up.slope.weight"]
    assert facts["decays"]["transformer.blocks.parts.mlp.part.up.slope.bias"] is False
    assert facts["weights"] == ["line", "per_layer"]
    assert facts["difference"] == 0.0
    assert facts["moved"] > 0


@pytest.mark.usefixtures("said")
def test_records_checkpoints_and_models_hold_its_digest(folder):
    sha256 = hashlib.sha256((folder / "my_idea.py").read_bytes()).hexdigest()
    checkpoint = next((folder / "runs" / "line" / "checkpoints").glob("step-*"))
    for path in (
        checkpoint / "training.json",
        checkpoint / "config.json",
        folder / "runs/line/final/config.json",
    ):
        assert json.loads(path.read_text())["plugins"] == {"my_idea.py": sha256}
    record = next((folder / "results" / "line").rglob("seed-0.json"))
    assert json.loads(record.read_text())["versions"]["plugin my_idea.py"] == sha256


@pytest.mark.usefixtures("said")
def test_a_model_without_its_plugin_is_a_sentence(folder):
    generate = ["-m", "qkvflow", "generate", "--prompt", "1", "--tokens", "2", "--checkpoint"]
    found = in_folder(folder, *generate, "runs/line")
    assert found.returncode == 2
    assert (
        "runs/line/final needs my_idea.py, which is not loaded: name the file with --plugin"
        in found.stderr
    )
    assert "there is no weight family 'line'" in found.stderr
    unrolled = in_folder(folder, *generate, "models/line")
    assert unrolled.returncode == 0, "an ordinary model needs no plugin"


@pytest.fixture
def _changed(folder):
    """One more line in the plugin, for a while."""
    path = folder / "my_idea.py"
    before = path.read_text()
    path.write_text(f"{before}\n# another one\n")
    yield
    path.write_text(before)


@pytest.mark.usefixtures("said", "_changed")
@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("train --config my_run.yaml --out runs/line", "runs/line/final"),
        ("experiment run --plan my_plan.yaml --out results/line", "runs/shared/seed-0"),
    ],
)
def test_nothing_goes_on_with_a_plugin_that_has_changed(folder, command, place):
    found = in_folder(folder, "-m", "qkvflow", *command.split())
    assert found.returncode == 2
    words = r"was begun with another plugin: the sha256 of my_idea.py was \w{12} and is \w{12}\."
    assert re.search(f"{place} {words}", found.stderr), found.stderr
