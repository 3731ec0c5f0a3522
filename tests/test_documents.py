"""The documents are true: API.md's examples run, README's commands exist and the example works."""

import dataclasses
import importlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import pytest
import yaml

from qkvflow.cli.compare import Options, make_plan
from qkvflow.cli.main import module_of
from qkvflow.config import Gpt2Config
from qkvflow.config.variants import ADAPTERS, FAMILIES, INTEGRATORS, PARTS
from qkvflow.experiments.plan import Plan, read_plan
from qkvflow.models import MODELS, build_model, count_parameters
from tests.models.gpt2_files import write_gpt2

ROOT = Path(__file__).parent.parent
COMMANDS = ["train", "evaluate", "generate", "analyze", "finetune", "import"]
"""Those of the README that are run: all but those that take hours."""
SMALLER = "--steps 4 --length 32 --architecture.hidden-dim 16 --architecture.num-heads 2"
"""What is added to its training: that models learn is for tests/train/test_learning.py."""


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def run(*command, cwd=ROOT):
    """A program of its own."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.documents
def test_every_example_of_the_api_document_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    names = {"folder": tmp_path}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for example in blocks("API.md", "python"):
            exec(compile(example, "API.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "hidden_dim 100 is not divisible" in printed
    assert "vocab_size is 0" in printed
    assert "Step 2, Loss:" in printed
    assert [axis.name for axis in names["logits"].axes] == ["batch", "position", "vocab"]
    assert names["greedy"].axes[1].size == 12
    assert names["outcome"].finished
    assert not names["evaluation"].whole


@pytest.mark.documents
def test_the_commands_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    write_gpt2(tmp_path / "models" / "gpt2")
    (tmp_path / "text.txt").write_text("A weight is a curve over depth.\n" * 200)
    lines = [line for block in blocks("README.md", "bash") for line in block.strip().splitlines()]
    lines = [line for line in lines if line.startswith(tuple(f"qkvflow {name} " for name in COMMANDS))]
    assert [line.split()[1] for line in lines] == COMMANDS
    for line in lines:
        here = line.replace("configs/", f"{ROOT}/configs/").replace("wikitext-2", "text.txt --steps 2")
        here = here.replace("tiny.yaml", f"tiny.yaml {SMALLER}")
        command = shlex.split(here, comments=True)
        result = run(sys.executable, "-W", "ignore", "-m", *command, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        if command[1] == "evaluate":
            assert "n-gram of order 3" in result.stdout
    assert (tmp_path / "analysis" / "analysis.html").is_file()


@pytest.mark.documents
def test_the_example_of_the_readme_runs():
    names = {}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), names)
    assert [axis.name for axis in names["logits"].axes] == ["batch", "position", "vocab"]
    assert jax.numpy.isfinite(names["loss"])
    lines = [line for line in blocks("README.md", "python")[0].splitlines() if line]
    assert len(lines) == 8


def test_the_readme_is_read_in_three_minutes_and_the_findings_in_ten():
    assert (ROOT / "README.md").read_text().count("\n") <= 150
    assert len((ROOT / "docs" / "findings.md").read_text().split()) <= 2500


def test_the_readme_has_a_row_for_every_named_model():
    rows = re.findall(r"^\| `(\w+)` \|.*\| [\d,]+ \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(MODELS)


def test_the_plan_of_the_first_hour_is_a_plan():
    plan = Plan.of(yaml.safe_load(blocks("docs/start.md", "yaml")[0])).checked()
    assert [arm.name for arm in plan.arms] == ["shared", "gated"]


def test_the_sizes_in_the_api_document_are_the_models():
    usual, narrow = (
        eqx.filter_eval_shape(build_model, "time_indexed_mlp", config, key=jax.random.key(0))
        for config in (Gpt2Config(), Gpt2Config(mlp_ratio=1))
    )
    said = [f"{count_parameters(model).total / 1e6:.1f}M" for model in (usual, narrow)]
    text = f"(about {said[0]} parameters at hidden 256; {said[1]} with `mlp_ratio=1`)"
    assert text in (ROOT / "API.md").read_text()


def test_the_comparison_of_the_readme_is_that_of_the_command_without_options():
    there, here = read_plan(str(ROOT / "results" / "compare" / "plan.yaml")), make_plan(Options())
    assert (there.arms, there.seeds) == (here.arms, here.seeds)


def test_every_field_of_the_config_is_in_the_api_document():
    text = (ROOT / "API.md").read_text()
    missing = [
        name
        for name in Gpt2Config.__dataclass_fields__
        if f"`{name}`" not in text and f"    {name}=" not in text
    ]
    assert not missing


@pytest.mark.parametrize("variants", [FAMILIES, PARTS, INTEGRATORS, ADAPTERS], ids=lambda of: of.kind)
def test_every_setting_of_a_choice_is_in_the_api_document(variants):
    text = (ROOT / "API.md").read_text()
    for variant in variants.values():
        settings = [setting.name for setting in dataclasses.fields(variant)]
        assert not [name for name in settings if f"`{name}`" not in text], variant


@pytest.mark.documents
def test_the_example_program_runs_and_learns():
    result = run(sys.executable, "-W", "ignore", "example_usage.py")
    assert result.returncode == 0, result.stderr
    losses = [float(x) for x in re.findall(r"step +60, loss ([\d.]+)", result.stdout)]
    assert len(losses) == 2
    assert max(losses) < 1.5, result.stdout


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documents_name_only_targets_that_exist(document):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / document).read_text()))
    assert named <= targets, named - targets


SCRIPTS = {
    "ablation_constant_modulation": ("experiment ablate", "ablation_results"),
    "adaptive_finetuning": ("experiment run", "--plan"),
    "compare_vs_tong_neuralode": ("compare", "comparison"),
    "measure_flops": ("experiment cost", ""),
    "plot_statistical_results": ("experiment report", "publication_figures"),
    "run_5_seed_validation": ("experiment run", "statistical_validation_results"),
}
"""What the documents that came before name: the command that each is, and where it writes."""


def test_no_other_scripts_are_there():
    assert {path.stem for path in (ROOT / "scripts").glob("*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_a_command_and_writes_where_it_is_said(name, monkeypatch, capsys):
    script, (command, directory) = ROOT / "scripts" / f"{name}.py", SCRIPTS[name]
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    # What is there to end a command would end the tests.
    monkeypatch.setattr("qkvflow.cli.main.leave_when_interrupted", lambda sentence: None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert f"usage: {script} " in printed
    assert directory in printed
    assert importlib.import_module(module_of(command)).__doc__.splitlines()[0] in printed


def test_the_readme_begins_with_the_two_commands():
    first = blocks("README.md", "bash")[0]
    assert [line.split("#")[0].strip() for line in first.strip().splitlines()] == [
        "make compare",
        "make test",
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_they_are_what_make_would_run():
    for target, last in (("compare", ".venv/bin/qkvflow compare"), ("test", ".venv/bin/pytest")):
        printed = run("make", "--dry-run", "--no-print-directory", target).stdout
        assert printed.splitlines()[-1] == last


def test_the_files_that_contributors_are_sent_to_are_there():
    named = re.findall(r"`((?:qkvflow|docs)/[\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).exists()]


def test_every_promise_of_the_security_document_has_its_tests():
    text = (ROOT / "SECURITY.md").read_text()
    promised, _ = text.split("## What is not")
    for promise in promised.split("\n- ")[1:]:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", promise)
        assert tests, promise
        for file, name in tests:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "API.md", "docs/*.md"])
def test_documents_use_the_words_of_the_field(document):
    """What a newcomer would have to look up is said in words that everyone has."""
    habits = (
        r"told\s+apart|nats\s+a\s|on\s+the\s+frontier|first\s+version|seed\s+documents|\ba\s+floor\b"
    )
    for path in ROOT.glob(document):
        assert not re.findall(habits, path.read_text(), re.IGNORECASE), path


def test_links_between_documents_lead_somewhere():
    reports = (ROOT / "results").glob("*/*.md")
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *reports):
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize(
    ("file", "table"), [("requirements.txt", "dependencies"), ("requirements-docs.txt", "docs")]
)
def test_requirements_name_no_index_and_cover_the_dependencies(file, table):
    text = (ROOT / file).read_text()
    assert "://" not in text
    assert "--" not in re.sub(r"#.*", "", text)
    pinned = {line.split("==")[0] for line in text.splitlines() if "==" in line}
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.search(rf"^{table} = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)[1]
    assert set(re.findall(r'"([a-z-]+)', wanted)) <= pinned
