"""What is released: it installs into an empty environment and works there; its papers are in order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qkvflow import __version__

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github").rglob("*.yml"))
TRAIN = (
    "train --data text.txt --model shared --out run --steps 3 --batch-size 2 --length 16 "
    "--architecture.hidden-dim 16 --architecture.num-heads 2 --architecture.num-layers 2 "
    "--architecture.time-embed-dim 8 --architecture.sinusoidal-dim 4"
)


def run(*words, cwd):
    """What a program prints; it has to end well."""
    ended = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source archive, of a copy of the files that git knows."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    names = run("git", "ls-files", cwd=ROOT).splitlines()
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--outdir", dist, source, cwd=source)
    return {path.suffix: path for path in dist.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".whl", ".gz"])
def test_it_installs_into_an_empty_environment_and_works_there(built, suffix, tmp_path, monkeypatch):
    for name in ("PYTHONPATH", "QKVFLOW_DATA"):
        monkeypatch.delenv(name, raising=False)
    run(sys.executable, "-m", "venv", tmp_path / "empty", cwd=tmp_path)
    bin = tmp_path / "empty" / "bin"
    pins = ROOT / "requirements.txt"
    run(bin / "pip", "install", "--quiet", "-c", pins, built[suffix], cwd=tmp_path)
    command = bin / "qkvflow"
    assert run(command, "--version", cwd=tmp_path).strip() == __version__
    (tmp_path / "text.txt").write_text("Weights are curves over depth. " * 200)
    run(command, *TRAIN.split(), cwd=tmp_path)
    assert "bits/byte" in run(command, "evaluate", "--checkpoint", "run", cwd=tmp_path)
    said = run(command, "generate", "--checkpoint", "run", "--prompt", "W", "--tokens", 5, cwd=tmp_path)
    assert said.startswith("W") and len(said.strip("\n")) == 6
    plan = run(command, "experiment", "run", "--help", cwd=tmp_path)
    assert "laptop" in plan
    run(
        bin / "python",
        "-c",
        "from qkvflow.experiments.plan import read_plan; read_plan('laptop')",
        cwd=tmp_path,
    )


def test_the_citation_names_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["version"] == __version__
    assert {"title", "authors", "message", "license", "references"} <= cited.keys()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_there_are(path):
    content = yaml.safe_load(path.read_text())
    assert content["name"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in content.get("jobs", {}).values():
        assert {*job["strategy"]["matrix"]["target"]} <= {*targets}
        assert any(step.get("run") == "make ${{ matrix.target }}" for step in job["steps"])
