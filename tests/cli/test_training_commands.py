"""train, evaluate and generate as a person uses them, and what they say to hostile input."""

import importlib
import os
import re
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import qkvflow
from qkvflow.cli.main import main
from qkvflow.cli.train import Display
from qkvflow.data import ByteTokenizer
from qkvflow.train import read_metrics
from tests.experiments.support import tiny_fields
from tests.models.gpt2_files import write_gpt2
from tests.train.support import write_text

SMALL = """
--steps 20 --batch-size 4 --length 16 --eval-every 10 --eval-tokens 200 --architecture.hidden-dim 16
--architecture.num-layers 2 --architecture.num-heads 2 --optimizer.learning-rate 1e-2
--optimizer.warmup 2
"""


@pytest.fixture(autouse=True)
def _as_usual(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("COLUMNS", "80")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the command, and the text it read."""
    directory = tmp_path_factory.mktemp("trained")
    text = write_text(directory / "text.txt")
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("QKVFLOW_CACHE", str(directory / "cache"))
        options = ["--data", str(text), "--out", str(directory / "run"), *SMALL.split()]
        assert main(["train", "--model", "time_indexed_mlp", *options]) == 0
    return directory / "run", text


def test_train_says_where_things_are_and_a_second_time_that_it_is_done(trained, capsys):
    run, text = trained
    assert main(["train", "--data", str(text), "--out", str(run), *SMALL.split()]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"step +20  valid \d\.\d{4} nats/token  \d\.\d{4} bits/byte  \(the whole", printed)
    assert f"The model is in {run}/final" in printed
    assert "The run was already finished; nothing was run." in printed


def test_a_config_file_with_overrides(trained, tmp_path, capsys):
    _, text = trained
    (tmp_path / "run.yaml").write_text(
        f"data: {text}\nsteps: 2\nlength: 16\nmodel: shared\n"
        "architecture: {hidden_dim: 16, num_heads: 2}\noptimizer: {warmup: 0}\n"
    )
    options = ["--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    assert main(["train", *options, "--architecture.num_layers", "3", "--steps=3"]) == 0
    model = qkvflow.load(tmp_path / "out")
    assert str(model.config.weights) == "shared"
    assert (model.config.hidden_dim, model.config.num_layers) == (16, 3)
    assert "step      3" in capsys.readouterr().out


def test_variants_are_named_or_written_as_tables(trained, tmp_path, capsys):
    _, text = trained
    given = ["train", "--data", str(text), *SMALL.split(), "--steps", "2", "--architecture.weights"]
    assert main([*given, "low_rank", "--out", str(tmp_path / "name")]) == 0
    assert str(qkvflow.load(tmp_path / "name").config.weights) == "low_rank"
    options = ["{family: gated, gate: both}", "--architecture.parts", "mlp", "attention"]
    assert main([*given, *options, "--out", str(tmp_path / "table")]) == 0
    config = qkvflow.load(tmp_path / "table").config
    assert config.weights.gate == "both"
    assert [str(part) for part in config.parts] == ["mlp", "attention"]
    for wrong, hint in (("gatd", "'gated'"), ("{family: gated, gait: both}", "'gate'")):
        assert main([*given, wrong, "--out", str(tmp_path / "none")]) != 0
        assert f"Did you mean {hint}?" in " ".join(capsys.readouterr().err.split())


def test_evaluate_shows_the_whole_split_beside_n_grams(trained, capsys):
    run, text = trained
    options = ["--checkpoint", str(run), "--data", str(text), "--ngrams", "2"]
    assert main(["evaluate", *options, "--split", "test"]) == 0
    printed = capsys.readouterr().out
    assert "whole test split" in printed
    assert "n-gram of order 2" in printed
    assert main(["evaluate", *options, "--depth", "5", "--tokens", "64"]) == 0
    printed = capsys.readouterr().out
    assert "a part of the valid split" in printed


def test_evaluate_compares_depths_with_a_table_and_a_figure(trained, tmp_path, capsys):
    run, text = trained
    options = ["--checkpoint", str(run), "--data", str(text), "--tokens", "64"]
    figure = tmp_path / "depth.png"
    assert main(["evaluate", *options, "--depths", "1", "2", "4", "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line.split()[:1] in (["1"], ["2"], ["4"])]
    assert len(rows) == 3 and "MFLOP/token" in shown
    assert float(rows[0][4]) < float(rows[1][4]) < float(rows[2][4]), "operations"
    assert figure.read_bytes().startswith(b"\x89PNG")
    for depth, row in zip((1, 4), (rows[0], rows[2])):
        assert main(["evaluate", *options, "--depth", str(depth)]) == 0
        assert row[1] in capsys.readouterr().out, "the loss, evaluated alone"
    assert main(["evaluate", *options, "--depths", "1", "4", "--unit-steps"]) == 0
    others = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(row for row in others if row[:1] == ["4"])[1] != rows[2][1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--depths", "2", "--depth", "3"], "leave out --depth and --ngrams"),
        (["--figure", "x.png"], "needs --depths"),
        (["--depths", "2", "--figure", "x.txt"], "ending in .png or .pdf"),
        (["--depths", "0"], "expected a whole number of layers"),
    ],
)
def test_depths_that_evaluate_cannot_compare(trained, options, sentence, capsys):
    assert main(["evaluate", "--checkpoint", str(trained[0]), *options]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_evaluate_takes_the_text_of_the_run_where_none_is_named(trained, tmp_path, capsys):
    run, text = trained
    for place in (run, run / "final", run / "checkpoints" / "best"):
        assert main(["evaluate", "--checkpoint", str(place)]) == 0
        assert capsys.readouterr().out.startswith(f"{text}, whole valid split, depth 2\n")
    assert main(["evaluate", "--checkpoint", str(run), "--depth", "3", "--split", "test"]) == 0
    assert capsys.readouterr().out.startswith(f"{text}, whole test split, depth 3\n")
    shutil.copytree(run / "final", tmp_path / "apart")
    assert main(["evaluate", "--checkpoint", str(tmp_path / "apart")]) == 2
    assert "was trained on; name one with --data" in capsys.readouterr().err


def test_evaluate_says_that_the_text_of_the_run_is_another_one_now(trained, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "run", symlinks=True)
    before = trained[1].read_text()
    sentence = "This is not the text that the model was trained on: the digest of "
    try:
        trained[1].write_text(before.replace("weights", "layer"))
        for place in (run, run / "checkpoints" / "best"):
            assert main(["evaluate", "--checkpoint", str(place)]) == 0
            assert f"{sentence}{trained[1]} was " in capsys.readouterr().out
        assert main(["evaluate", "--checkpoint", str(run), "--data", str(trained[1])]) == 0
        assert sentence not in capsys.readouterr().out, "it was named"
    finally:
        trained[1].write_text(before)
    assert main(["evaluate", "--checkpoint", str(run)]) == 0
    assert sentence not in capsys.readouterr().out


def test_what_takes_long_is_shown_while_it_lasts(trained, tmp_path, monkeypatch):
    """Weights of a thousand layers take minutes: so does compiling them."""
    shown = []

    @contextmanager
    def keeping(description):
        shown.append(description)
        yield

    for name in ("generate", "evaluate", "export"):
        monkeypatch.setattr(importlib.import_module(f"qkvflow.cli.{name}"), "elapsed", keeping)
    given = ["--checkpoint", str(trained[0]), "--depth", "3"]
    assert main(["generate", *given, "--prompt", "a", "--tokens", "2"]) == 0
    assert main(["evaluate", *given, "--tokens", "64"]) == 0
    assert main(["export", *given, "--out", str(tmp_path / "three")]) == 0
    assert shown == [
        "sampling the weights at 3 layers",
        "compiling, then reading the prompt",
        "sampling the weights at 3 layers",
        "compiling, then evaluating with 3 layers",
        "sampling the weights at 3 layers",
    ]


def test_evaluate_says_what_the_tokenizer_loses_and_refuses_too_much(trained, tmp_path, capsys):
    options = ["--checkpoint", str(trained[0]), "--data", str(tmp_path / "other.txt")]
    write_text(tmp_path / "other.txt", 20_000)
    known = (tmp_path / "other.txt").read_text()
    at = len(known) * 92 // 100  # in the valid split
    (tmp_path / "other.txt").write_text(known[:at] + "ZZZZ" + known[at + 4 :])
    assert main(["evaluate", *options]) == 0
    printed = capsys.readouterr().out
    assert "The tokenizer char loses text of other.txt: 4 of " in printed
    (tmp_path / "other.txt").write_text(known.upper())
    assert main(["evaluate", *options]) == 2
    assert "--least-coverage" in capsys.readouterr().err
    assert main(["evaluate", *options, "--least-coverage", "0"]) == 0


def test_names_that_are_no_utf_8_are_printed(trained, tmp_path, capfd):
    """As a terminal would be printed to: strictly UTF-8, unless the program asks for something else."""
    run, name = tmp_path / os.fsdecode(b"caf\xe9"), os.fsdecode(b"t\xe9xt.txt")
    run.symlink_to(trained[0])
    (tmp_path / name).write_text(trained[1].read_text())
    with open(os.dup(1), "w", encoding="utf-8") as strict, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", strict)
        assert main(["evaluate", "--checkpoint", str(run), "--data", str(tmp_path / name)]) == 0
    assert r"t\udce9xt.txt, whole valid split" in capfd.readouterr().out


def test_generate_continues_a_prompt_at_any_depth_and_beyond_the_longest_sequence(trained, capsys):
    run, _ = trained
    options = ["--checkpoint", str(run), "--prompt", "weights are ", "--tokens", "40"]
    assert main(["generate", *options]) == 0
    first = capsys.readouterr().out
    assert first.startswith("weights are ")
    assert len(first) == len("weights are ") + 40 + 1
    assert main(["generate", *options]) == 0
    assert capsys.readouterr().out == first, "the same seed writes the same text"
    assert main(["generate", *options, "--depth", "4", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("weights are ")


def test_export_writes_what_the_other_commands_read(trained, tmp_path, capsys):
    run, text = trained
    out = tmp_path / "three"
    assert main(["export", "--checkpoint", str(run), "--depth", "3", "--out", str(out)]) == 0
    assert "a model with 3 layers" in capsys.readouterr().out
    assert main(["evaluate", "--checkpoint", str(out), "--data", str(text)]) == 0
    assert main(["generate", "--checkpoint", str(out), "--prompt", "a", "--tokens", "5"]) == 0
    assert main(["export", "--checkpoint", str(run), "--out", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--depth", "0"], "depth is 0; expected a whole number of layers"),
        (["--top-k", "0"], "top_k 0"),
        (["--temperature", "-1"], "temperature -1"),
        (["--temperature", "nan"], "temperature nan"),
        (["--temperature", "1e-40"], "temperature 1e-40"),
        (["--top-p", "2"], "top_p 2"),
        (["--draft-depth", "1", "--draft-tokens", "0"], "draft_tokens is 0"),
        (["--draft-depth", "3"], "draft_depth is 3 and this model has 2 layers"),
        (["--draft-depth", "0"], "draft_depth is 0"),
    ],
)
def test_choices_that_cannot_be_used_are_a_sentence(trained, capsys, options, words):
    assert main(["generate", "--checkpoint", str(trained[0]), "--prompt", "a", *options]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""
    if "depth" not in words:  # which depends on the model
        assert main(["generate", "--checkpoint", "none", "--prompt", "a", *options]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.usefixtures("drafts_are_cheap")
def test_drafts_change_no_text_and_what_became_of_them_is_said(trained, capsys):
    """40 tokens are more than the model has positions."""
    command = ["generate", "--checkpoint", str(trained[0]), "--prompt", "a", "--tokens", "40"]
    assert main([*command, "--temperature", "0"]) == 0
    plain = capsys.readouterr()
    assert main([*command, "--temperature", "0", "--draft-depth", "1"]) == 0
    drafted = capsys.readouterr()
    assert drafted.out == plain.out and plain.err == ""
    proposed, accepted = re.search(
        r"At depth 1, (\d+) tokens were drafted and (\d+) acc", drafted.err
    ).groups()
    assert int(proposed) > 0 and int(accepted) <= int(proposed)
    assert main([*command, "--draft-depth", "2"]) == 0
    assert capsys.readouterr().err.startswith("Drafting at depth 2 cannot save time here")


def test_what_the_tokenizer_loses_of_a_prompt_is_said(trained, capsys):
    assert main(["generate", "--checkpoint", str(trained[0]), "--prompt", "aé", "--tokens", "1"]) == 0
    assert "The tokenizer loses 2 bytes of the prompt" in capsys.readouterr().err


def test_a_tokenizer_of_another_model_is_refused(trained, tmp_path, capsys):
    shutil.copytree(trained[0] / "final", tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text('{"kind": "byte"}')
    for command in (["evaluate"], ["generate", "--prompt", "a"]):
        assert main([*command, "--checkpoint", str(tmp_path / "model")]) == 2
        assert "tokenizer.json is missing, or was changed" in capsys.readouterr().err


def test_a_character_of_several_tokens_is_shown_whole(capsys):
    """A model of bytes, whose positions end in the middle of characters."""
    from qkvflow.cli import generate as command

    text = "é" * 40
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)[None]
    seen = []
    for block in (ids[:, :7], ids[:, 7:20], ids[:, 20:]):
        seen.append(hax.named(jnp.asarray(block), ("batch", "position")))
    command.show("x", seen, ids.size, ByteTokenizer())
    assert capsys.readouterr().out == "x" + text + "\n"


def test_help_shows_every_part_of_a_run(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = capsys.readouterr().out
    for words in ("--optimizer.learning-rate", "--architecture.hidden-dim", "--out", "Ctrl-C saves"):
        assert words in printed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"short", "Give a longer text"),
        (b"caf\xe9 " * 1000, "UTF-8"),
        (bytes(range(256)) * 40, "binary"),
        (b"a" * 5000, "holds the single symbol 'a'"),
    ],
)
def test_hostile_text_is_a_sentence(tmp_path, capsys, content, words):
    (tmp_path / "text.txt").write_bytes(content)
    options = ["--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), *SMALL.split()]
    assert main(["train", *options]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config", "none.yaml"], "none.yaml cannot be read"),
        (["--config"], "--config needs a file"),
        (["--model", "standart"], "Did you mean 'standard'?"),
        (["--data", "/no/such/text"], "no corpus and no file named '/no/such/text'"),
        (["--data", ""], "data is empty; expected a name or a path"),
        (["--data", "~nosuchuser/text"], "~nosuchuser/text cannot be found"),
        (["--out", "~nosuchuser/out"], "~nosuchuser/out cannot be found"),
        (["--plugin", "~nosuchuser/own.py"], "~nosuchuser/own.py cannot be found"),
        (["--tokenizer", "~nosuchuser/tokenizer.json"], "~nosuchuser/tokenizer.json cannot be found"),
        (["--config", "~nosuchuser/run.yaml"], "~nosuchuser/run.yaml cannot be found"),
        (["--plugin", "/dev/zero"], "has more than 1,000,000 bytes"),
        (["--out", ""], "A path is empty"),
        (["--out", "/proc/none"], "cannot be written"),
        (["--optimizer.name", "adamm"], "no optimizer 'adamm'"),
        (
            ["--architecture.weights", "{family: gated, gate: bad}"],
            "\n  - gated: gate is 'bad'; expected",
        ),
        (["--architecture.weights", "gatedd"], "\n  - there is no weight family 'gatedd'. Did you"),
        (["--optimizer.groups", "{base: {rat: 1}}"], "\n  - groups: base: there is no field 'rat'"),
    ],
)
def test_options_that_cannot_be_used_are_a_sentence(trained, tmp_path, capsys, options, words):
    _, text = trained
    given = ["--data", str(text), "--out", str(tmp_path / "out"), *SMALL.split(), *options]
    assert main(["train", *given]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_a_directory_without_a_model_is_a_sentence(tmp_path, capsys, command):
    prompt = ["--prompt", "a"] if command == "generate" else []
    assert main([command, "--checkpoint", str(tmp_path / "none"), *prompt]) == 2
    assert "is not there: expected a directory with" in capsys.readouterr().err


def test_a_file_or_a_directory_too_many_is_a_sentence_that_names_the_right_one(trained, capsys):
    run, text = trained
    for place in (run / "run.yaml", run / "checkpoints", run.parent):
        assert main(["generate", "--checkpoint", str(place), "--prompt", "a"]) == 2
        assert f"a training run. Name {run}." in capsys.readouterr().err
    assert main(["train", "--config", str(run), "--out", str(run)]) == 2
    assert f"Is a directory. Name a YAML file, such as {run / 'run.yaml'}." in capsys.readouterr().err
    assert main(["train", "--data", str(text), "--out", str(text), *SMALL.split()]) == 2
    assert f"{text} is a file. Name another directory with --out." in capsys.readouterr().err
    assert main(["train", "--model", "standard", "--data", str(text), "--out", str(run)]) == 2
    sentence = capsys.readouterr().err
    assert "is of another run: model is 'time_indexed_mlp' there and 'standard' here;" in sentence
    assert f"which are in {run / 'run.yaml'}, or another directory" in sentence
    assert len(sentence) < 2000


def test_brackets_of_a_sentence_are_shown(capsys):
    sentence = 'pip install "qkvflow[peers]" [/red]'
    Display("standard", 1).write({"kind": "note", "step": 0, "text": sentence})
    assert capsys.readouterr().err == f"{sentence}\n"


def test_commands_write_only_where_they_are_told(trained, tmp_path, monkeypatch):
    run, text = trained
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "cache" / "matplotlib"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    given = ["--checkpoint", str(run)]
    assert main(["generate", *given, "--prompt", "a", "--tokens", "2"]) == 0
    assert main(["evaluate", *given, "--data", str(text), "--tokens", "64"]) == 0
    assert main(["export", *given, "--out", "exported"]) == 0
    few = [*given, "--text", "a layer", "--out", "analyzed"]
    assert main(["analyze", "modulation", *few]) == 0
    shorter = ["--steps", "2", "--batch-size", "4", "--eval-tokens", "64", "--optimizer.warmup", "1"]
    assert main(["train", "--data", str(text), *SMALL.split(), *shorter, "--out", "trained"]) == 0
    assert main(["finetune", *given, *shorter, "--method", "lora", "--out", "tuned"]) == 0
    write_gpt2(tmp_path / "gpt2")
    assert main(["import", "--gpt2", str(tmp_path / "gpt2"), "--out", "imported"]) == 0
    plan = tiny_fields(text, seeds=1, arms={"standard": {"model": "standard"}})
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    for command in ("run", "cost"):
        out = ["--out", "experiment"] if command == "run" else ["--timed-steps", "1"]
        assert main(["experiment", command, "--plan", str(tmp_path / "plan.yaml"), *out]) == 0
    shutil.rmtree("experiment/figures")
    assert main(["experiment", "report", "--results", "experiment", "--out", "page"]) == 0
    assert not Path("experiment/figures").exists()
    assert main(["experiment", "pack", "experiment"]) == 0
    assert {path.name for path in Path().iterdir()} == {
        *("exported", "analyzed", "trained", "tuned", "imported", "experiment", "page")
    }
    assert {path.name for path in tmp_path.iterdir()} == {"work", "cache", "gpt2", "plan.yaml"}
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_an_empty_prompt_is_a_sentence(trained, capsys):
    assert main(["generate", "--checkpoint", str(trained[0]), "--prompt", ""]) == 2
    assert "the prompt has 0 tokens" in capsys.readouterr().err


def test_a_run_whose_loss_is_not_finite_says_what_to_try(trained, tmp_path, capsys):
    _, text = trained
    wild = ["--optimizer.learning-rate", "1e30", "--optimizer.clip", "0"]
    options = ["--data", str(text), "--out", str(tmp_path / "out"), *SMALL.split(), *wild]
    assert main(["train", *options]) == 3
    assert "with a smaller optimizer.learning_rate" in capsys.readouterr().err


def test_evaluate_says_how_many_answers_are_right(tmp_path, capsys):
    """As many as the run says at its end; and where it was trained on them alone, their loss."""
    data = "hops:hops=1,test_hops=2,length=6,questions=1,problems=100"
    run, of_all = tmp_path / "run", [*SMALL.split(), "--data", data, "--length", "13"]
    assert main(["train", "--out", str(run), *of_all, "--answers-only"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "--checkpoint", str(run)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    final = read_metrics(run / "metrics.jsonl")[-1]
    known = final["accuracy"]
    assert f"{data}, whole valid split, answers only, depth 2" in printed
    assert f" 10 {final['loss']:.4f} " in printed, "ten tokens, and their loss"
    assert (
        f"all answers {known['whole']:.1%}" in printed and " 10 answers; an answer is right" in printed
    )
    assert f"2 hops {known['by_count']['2']:.1%} 33.3%" in printed
    assert main(["evaluate", "--checkpoint", str(run), "--depths", "2", "3", "--unit-steps"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert f" 2 {final['loss']:.4f} " in table and f" {known['whole']:.1%} " in table
    other = write_text(tmp_path / "text.txt")
    options = ["--data", str(other), "--least-coverage", "0"]
    assert main(["evaluate", "--checkpoint", str(run), *options]) == 0
    assert "Accuracy" not in capsys.readouterr().out, "a text without questions"
