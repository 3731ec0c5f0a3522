"""Every command of docs/exchange.md runs, with local files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import qkvflow
from qkvflow.cli.main import main
from qkvflow.data import BPETokenizer
from qkvflow.extras import pip_line
from tests.models.gpt2_files import write_gpt2, write_llama
from tests.support import random_model, small_config
from tests.train.support import trained_base, write_text

DOCUMENT = (Path(__file__).parents[2] / "docs" / "exchange.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
ON_TASKS = [line for line in COMMANDS if "tasks" in line]
SMALL = "text.txt --length 8 --steps 2 --batch-size 2 --eval-every 2 --eval-tokens 64"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a run, a GPT-2 and a Llama of twelve layers, and a text."""
    place = tmp_path_factory.mktemp("exchange")
    (place / "runs").mkdir()
    trained_base(place)
    (place / "run").rename(place / "runs" / "first")
    write_gpt2(place / "models" / "gpt2", n_layer=12, vocab_size=300)
    llama = small_config(flavour="llama", num_layers=12, vocab_size=300)
    write_llama(place / "models" / "llama", random_model("standard", llama, scale=0.1))
    tokenizer = BPETokenizer.fit(["weights are curves over depth " * 20], 280)
    for name in ("gpt2", "llama"):
        (place / "models" / name / "tokenizer.json").write_text(tokenizer.json_text)
    write_text(place / "text.txt")
    (place / "tasks").mkdir()
    (task,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    (place / "tasks" / "questions.yaml").write_text(task)
    rows = [{"query": "weights are", "choices": ["curves", "a layer"], "gold": i % 2} for i in range(6)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (place / "tasks" / "questions.jsonl").write_text(lines)
    return place


@pytest.mark.documents
def test_commands_of_the_document_run(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setenv("QKVFLOW_CACHE", str(place / "cache"))
    lines = [line for line in COMMANDS if line not in ON_TASKS]
    names = " ".join(line.split()[1] for line in lines)
    assert names == "download import import export export export finetune finetune export export"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for line in lines:
            name, *options = shlex.split(line.replace("wikitext-2", SMALL))
            assert name == "qkvflow"
            assert main(options) == 0, f"{line}: {capsys.readouterr().err}"
    assert qkvflow.load("runs/llama-loop").config.weights.plan == "1 + 5x2 + 1"
    assert json.loads(Path("models/first-hf-12/config.json").read_text())["n_layer"] == 12
    assert Path("models/first-hf/README.md").read_text().startswith("---\nlicense: unknown")


@pytest.mark.peers
@pytest.mark.parametrize("line", ON_TASKS, ids=lambda line: " ".join(line.split()[:3]))
def test_commands_on_tasks_run(place, tmp_path, line):
    here = line.replace("lambada_openai,hellaswag", "questions --task-folder tasks")
    program = shlex.split(here.removeprefix("python -m "))
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": root}
    command = [sys.executable, "-W", "ignore", "-m", *program]
    found = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "questions" in found.stdout and "acc_norm" in found.stdout


def test_without_the_harness_tasks_are_a_sentence(place, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    given = ["--checkpoint", str(place / "runs" / "first"), "--tasks", "lambada_openai"]
    assert main(["evaluate", *given]) == 2
    assert pip_line("lm-eval") in capsys.readouterr().err


def test_a_tokenizer_of_another_model_is_refused(place, tmp_path, capsys):
    shutil.copytree(place / "models" / "llama", tmp_path / "llama")
    tokenizer = BPETokenizer.fit([" ".join(f"word{i}" for i in range(300))], 400)
    (tmp_path / "llama" / "tokenizer.json").write_text(tokenizer.json_text)
    out = tmp_path / "out"
    assert main(["import", "--llama", str(tmp_path / "llama"), "--out", str(out)]) == 2
    assert "The tokenizer does not fit the model" in capsys.readouterr().err
    assert not out.exists()
