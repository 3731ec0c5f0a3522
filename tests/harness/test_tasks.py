"""lm-evaluation-harness on our models: local tasks whose answers are known from a Markov chain."""

import json
import math
import os
import subprocess
import sys
from importlib.metadata import entry_points

import jax
import numpy as np
import pytest
import yaml

from qkvflow.cli.main import main
from qkvflow.data import BPETokenizer
from qkvflow.exchange import write_transformers
from tests.harness.support import LANGUAGE, likeliest, log_probability, saved
from tests.support import random_model, small_config

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
STREAMS = range(12)


@pytest.fixture(autouse=True)
def _as_usual(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def choices():
    """Questions of several lengths; the gold answer is drawn, so that some are wrong."""
    gold = np.random.default_rng(0).integers(0, 3, len(STREAMS))
    return [
        {
            "query": LANGUAGE.sample(3 + 5 * i, 2 * i),
            "choices": [LANGUAGE.sample(4 + k, 100 + 3 * i + k) for k in range(3)],
            "gold": int(gold[i]),
        }
        for i in STREAMS
    ]


def texts():
    return [{"text": LANGUAGE.sample(20 + 9 * i, 300 + i)} for i in STREAMS]


def prompts():
    """Of two prompts the second one's answer is not what the chain would say."""
    queries = [LANGUAGE.sample(2 + 3 * i, 200 + i) for i in STREAMS]
    return [
        {"query": query, "answer": (likeliest(query, 40) if i % 2 == 0 else "a").split("g")[0]}
        for i, query in enumerate(queries)
    ]


TASKS = {
    "markov_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "target_delimiter": "",
        "metric_list": [{"metric": name} for name in ("acc", "acc_norm")],
    },
    "markov_text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "markov_writing": {
        "output_type": "generate_until",
        "doc_to_text": "{{query}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "generation_kwargs": {"until": ["g"], "max_gen_toks": 40},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """YAML files of the tasks, with their data, and a task whose data are nowhere."""
    directory = tmp_path_factory.mktemp("tasks")
    rows = {"markov_choice": choices(), "markov_text": texts(), "markov_writing": prompts()}
    for name, task in TASKS.items():
        data = directory / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        found = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(data)},
                "cache_dir": str(directory / "cache"),
            },
            "test_split": "test",
        }
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(found | task))
    nowhere = {"task": "markov_nowhere", "dataset_path": "nobody/nothing", "test_split": "test"}
    (directory / "markov_nowhere.yaml").write_text(yaml.safe_dump(TASKS["markov_text"] | nowhere))
    return directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return saved(tmp_path_factory.mktemp("markov") / "model")


def test_answers_are_those_of_the_markov_chain_at_any_depth(folder, checkpoint):
    from qkvflow.harness.tasks import run_tasks

    scored = [[log_probability(row["query"], choice) for choice in row["choices"]] for row in choices()]
    best = [int(np.argmax(row)) for row in scored]
    lengths = [[len(choice) for choice in row["choices"]] for row in choices()]
    normed = [int(np.argmax(np.divide(*pair))) for pair in zip(scored, lengths)]
    gold = [row["gold"] for row in choices()]
    nats = sum(log_probability("", row["text"]) for row in texts())
    size = sum(len(row["text"]) for row in texts())
    for depth in (None, 5):
        found = run_tasks(checkpoint, list(TASKS), folder=folder, depth=depth, batch_size=5)
        assert found["markov_choice"]["acc,none"] == np.mean(np.equal(best, gold))
        assert found["markov_choice"]["acc_norm,none"] == np.mean(np.equal(normed, gold))
        bits = found["markov_text"]["bits_per_byte,none"]
        assert abs(bits + nats / size / math.log(2)) < 1e-5
        written = [likeliest(row["query"], 40).split("g")[0] == row["answer"] for row in prompts()]
        assert 0 < np.mean(written) < 1
        assert found["markov_writing"]["exact_match,none"] == np.mean(written)


def test_the_command_prints_a_table(folder, checkpoint, capsys):
    given = ["--checkpoint", str(checkpoint), "--tasks", "markov_text,markov_choice", "--depth", "3"]
    more = ["--shots", "2", "--task-folder", str(folder), "--examples", "4", "--batch-size", "2"]
    assert main(["evaluate", *given, *more]) == 0
    printed = capsys.readouterr().out
    assert "at depth 3" in printed
    for word in ("markov_text", "bits_per_byte", "markov_choice", "acc_norm"):
        assert word in printed
    nats = sum(log_probability("", row["text"]) for row in texts()[:4])
    size = sum(len(row["text"]) for row in texts()[:4])
    assert f"{-nats / size / math.log(2):.4f}" in printed


def test_examples_before_a_question_are_read(folder, checkpoint):
    """The chain forgets them: the first symbol of a choice has only the last one of the query."""
    from qkvflow.harness.tasks import run_tasks

    none, three = (
        run_tasks(checkpoint, ["markov_choice"], folder=folder, shots=shots, limit=5)
        for shots in (0, 3)
    )
    assert none["markov_choice"]["acc,none"] == three["markov_choice"]["acc,none"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--tasks", "markov_chioce"],
            "there is no task 'markov_chioce'. Did you mean 'markov_choice'?",
        ),
        (["--tasks", "markov_text", "--data", "embedded"], "which need a text"),
        (["--tasks", "markov_text", "--stop-early", "0.1"], "which need a text"),
        (["--shots", "3"], "shots: needs --tasks"),
        (["--tasks", "markov_text", "--checkpoint", "none"], "none is not there"),
        (["--tasks", "markov_text", "--depth", "0"], "depth is 0; expected a whole number of layers"),
    ],
)
def test_what_cannot_be_evaluated_is_a_sentence(folder, checkpoint, capsys, options, words):
    folder = [] if "--shots" in options else ["--task-folder", str(folder)]
    assert main(["evaluate", "--checkpoint", str(checkpoint), *folder, *options]) == 2
    printed = capsys.readouterr().err
    assert words in " ".join(printed.split())
    assert "Traceback" not in printed and len(printed) < 600


def in_a_process(*command, **environment):
    run = [sys.executable, "-W", "ignore", "-m", *command]
    where = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run(run, env=where, capture_output=True, text=True, check=False)


def test_a_hub_that_is_not_reachable_is_a_sentence(folder, checkpoint, tmp_path):
    given = ["--checkpoint", str(checkpoint), "--task-folder", str(folder), "--tasks", "markov_nowhere"]
    found = in_a_process("qkvflow", "evaluate", *given, HF_HOME=str(tmp_path))
    assert found.returncode == 2
    assert "The data of the task markov_nowhere cannot be read: " in found.stderr
    assert "whether the hub can be reached" in found.stderr
    assert "Traceback" not in found.stderr


def test_the_harness_finds_the_model_by_its_entry_point():
    from qkvflow.harness.model import QkvflowLM

    (entry,) = entry_points(group="lm_eval.models", name="qkvflow")
    assert entry.load() is QkvflowLM


def test_the_harness_keeps_answers(folder, checkpoint, tmp_path):
    from lm_eval import simple_evaluate

    from qkvflow.harness.model import QkvflowLM
    from qkvflow.harness.tasks import load_tasks, task_manager

    model, cache = QkvflowLM(str(checkpoint)), str(tmp_path / "answers")
    manager = task_manager(["markov_writing"], folder)
    tasks = load_tasks(manager, ["markov_writing"])
    kept = {"use_cache": cache, "task_manager": manager, "bootstrap_iters": 0}
    found = [simple_evaluate(model, tasks=tasks, **kept) for _ in range(2)]
    assert found[0]["results"] == found[1]["results"]
    assert list(tmp_path.glob("answers*.db"))


class Request:
    def __init__(self, *args):
        self.args = args


def test_scores_and_continuations_are_those_of_the_exported_model_in_the_class_of_the_harness(tmp_path):
    """Against its own class for models of transformers, on contexts that end in spaces, too."""
    from lm_eval.models.huggingface import HFLM

    from qkvflow.harness.model import QkvflowLM

    content = json.loads(BPETokenizer.fit(["a weight is a curve over depth " * 9], 290).json_text)
    content["model"]["vocab"]["<|endoftext|>"] = len(content["model"]["vocab"])
    tokenizer = BPETokenizer.parse(json.dumps(content), "a test")
    config = small_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=32)
    model = random_model("time_indexed_mlp", config)
    saved(tmp_path / "ours", model, tokenizer)
    write_transformers(model, tmp_path / "theirs", tokenizer)
    ours = QkvflowLM(str(tmp_path / "ours"), batch_size=2)
    theirs = HFLM(str(tmp_path / "theirs"), device="cpu", batch_size=1, max_length=32)
    words = ["a", "weight", "is", "a", "curve", "over", "depth", "and", "a", "layer", "is", "a", "time"]
    cuts = range(1, 9)
    pairs = [(" ".join(words[:i]) + "  "[: i % 3], " " + " ".join(words[i : i + 2])) for i in cuts]
    pairs.append(("", "a curve"))
    requests = [Request(*pair) for pair in pairs]
    for (own, is_own), (other, is_other) in zip(
        ours.loglikelihood(requests), theirs.loglikelihood(requests), strict=True
    ):
        assert abs(own - other) < 1e-3, f"{own - other} of {other}"
        assert is_own == is_other
    texts = [Request(" ".join(words * count)) for count in (1, 2, 7)]  # up to three windows
    rolling = zip(ours.loglikelihood_rolling(texts), theirs.loglikelihood_rolling(texts))
    errors = [abs(own - other) for own, other in rolling]
    assert max(errors) < 1e-3, errors
    wish = {"until": ["zz"], "max_gen_toks": 9}
    wishes = [Request(context[-20:], wish) for context, _ in pairs[:-1]]
    assert ours.generate_until(wishes) == theirs.generate_until(wishes)
