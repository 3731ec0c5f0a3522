"""finetune, import and export as a person uses them."""

import dataclasses
import re

import jax
import pytest

import qkvflow
from qkvflow.cli.main import main
from qkvflow.data import BPETokenizer
from tests.models.gpt2_files import write_gpt2
from tests.support import difference
from tests.train.support import tiny_run, trained_base, write_text

SMALL = "--steps 4 --batch-size 4 --eval-every 2 --eval-tokens 64 --rank 2 --optimizer.warmup 1"


@pytest.fixture(autouse=True)
def _as_usual(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("COLUMNS", "100")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("base")
    return trained_base(directory), write_text(directory / "other.txt", seed=3)


def test_finetune_says_what_changed_and_others_read_it(base, tmp_path, capsys):
    checkpoint, text = map(str, base)
    out = tmp_path / "out"
    given = ["--checkpoint", checkpoint, "--data", text, "--out", str(out), *SMALL.split()]
    assert main(["finetune", *given, "--depth", "3", "--method", "lora"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"Valid loss \d\.\d{4} before, \d\.\d{4} after", printed)
    assert re.search(r"Trained [\d,]+ of [\d,]+ parameters", printed)
    assert re.search(rf"The adapter is in {out}/adapter, \d+ kB", printed)
    assert main(["finetune", *given, "--depth", "3", "--method", "lora"]) == 0
    again = capsys.readouterr().out
    assert again == f"The run was already finished; nothing was run.\n{printed}"
    assert main(["evaluate", "--checkpoint", str(out), "--data", text, "--tokens", "64"]) == 0
    assert main(["generate", "--checkpoint", str(out), "--prompt", "a", "--tokens", "4"]) == 0
    exported = ["--checkpoint", checkpoint, "--adapter", str(out / "adapter")]
    assert main(["export", *exported, "--out", str(tmp_path / "whole")]) == 0
    both = [qkvflow.load(path) for path in (tmp_path / "whole", out)]
    assert difference(*(list(qkvflow.models.paths.arrays_of(m).values()) for m in both)) == 0.0
    capsys.readouterr()
    for place in (out, out / "final", out / "adapter" / "adapter.json"):
        wrong = ["--checkpoint", checkpoint, "--adapter", str(place), "--out", str(tmp_path / "new")]
        assert main(["export", *wrong]) == 2
        assert f" Name {out / 'adapter'}." in capsys.readouterr().err
    assert main(["evaluate", "--checkpoint", str(out / "adapter")]) == 2
    assert "It holds an adapter: name its base" in capsys.readouterr().err


def test_an_adapter_that_is_a_curve_is_used_at_depths_it_was_not_tuned_at(tmp_path, capsys):
    """Over an elastic base with loops and gates around its visits; tokens of it may stop early, too."""
    architecture = dataclasses.replace(tiny_run("x").architecture, num_layers=4)
    architecture = dataclasses.replace(architecture, weights={"family": "looped", "around": "gated"})
    changes = {"model": "looped", "architecture": architecture, "depths": (2, 4), "steps": 4}
    base, text = trained_base(tmp_path, **changes), str(write_text(tmp_path / "other.txt", seed=3))
    out = str(tmp_path / "out")
    given = ["--checkpoint", str(base), "--data", text, "--out", out, *SMALL.split()]
    assert main(["finetune", *given, "--method", "depth_lora"]) == 0
    capsys.readouterr()
    look = ["evaluate", "--checkpoint", out, "--data", text, "--tokens", "64"]
    assert main([*look, "--depths", "2", "4", "8"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    losses = {row[0]: row[1] for row in rows if row[:1] in (["2"], ["4"], ["8"])}
    assert len(losses) == 3
    assert main([*look, "--stop-early", "0", "1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    early = {row[0]: row[1:3] for row in rows if row[:1] in (["0"], ["1"])}
    assert early["0"] == ["4.00", losses["4"]] and early["1"][0] == "2.00"
    speak = ["generate", "--checkpoint", out, "--prompt", "a", "--tokens", "4", "--temperature", "0"]
    assert main([*speak, "--depth", "8"]) == 0
    assert main([*speak, "--depth", "6", "--stop-early", "0.1"]) == 0
    assert "of 6 layers on average" in capsys.readouterr().err
    assert main([*speak, "--draft-depth", "2", "--stop-early", "0.1"]) == 2
    assert "leave one out" in capsys.readouterr().err
    assert main([*look, "--depths", "2", "--stop-early", "0.1"]) == 2
    assert "it prints a table of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--depth", "0"], "depth is 0; expected a whole number of layers"),
        (["--method", "lora", "--maps", "atn.*"], "'atn.*' matches no linear map; this model has"),
        (["--checkpoint", "none"], "none is not there"),
        (["--steps", "-1"], "steps is -1"),
    ],
)
def test_what_finetune_cannot_do_is_a_sentence(base, tmp_path, capsys, options, words):
    checkpoint, text = map(str, base)
    given = ["--checkpoint", checkpoint, "--data", text, "--out", str(tmp_path / "out")]
    assert main(["finetune", *given, *SMALL.split(), *options]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert "Traceback" not in printed.err
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_an_adapter_of_another_base_is_a_sentence(base, tmp_path, capsys):
    checkpoint, text = map(str, base)
    given = ["--data", text, "--out", str(tmp_path / "out"), *SMALL.split(), "--method", "lora"]
    assert main(["finetune", "--checkpoint", checkpoint, *given]) == 0
    other = trained_base(tmp_path, seed=1)
    options = ["--adapter", str(tmp_path / "out/adapter"), "--out", str(tmp_path / "new")]
    assert main(["export", "--checkpoint", str(other), *options]) == 2
    printed = capsys.readouterr().err
    assert "is an adapter of another base" in printed and f"trained on {checkpoint};" in printed
    assert main(["finetune", "--checkpoint", str(other), *given]) == 2
    printed = capsys.readouterr().err
    assert f"its base is {checkpoint} (digest " in printed and f"{other} (digest " in printed
    assert f"which are in {tmp_path / 'out' / 'run.yaml'}" in printed


def test_import_takes_the_tokenizer_of_gpt2_along_and_export_writes_it_in_a_basis(tmp_path, capsys):
    source, imported, basis = (tmp_path / name for name in ("gpt2", "imported", "basis"))
    write_gpt2(source, vocab_size=300)
    tokenizer = BPETokenizer.fit(["weights are curves over depth " * 20], 280)
    (source / "tokenizer.json").write_text(tokenizer.json_text)
    assert main(["import", "--gpt2", str(source), "--out", str(imported)]) == 0
    assert "holds a model with 3 layers" in capsys.readouterr().out
    options = ["--checkpoint", str(imported), "--basis", "3", "--out", str(basis)]
    assert main(["export", *options]) == 0
    assert "Relative error of the weights: 0.00e+00." in capsys.readouterr().out
    prompt = ["--prompt", "weights", "--tokens", "3", "--temperature", "0"]
    assert main(["generate", "--checkpoint", str(basis), *prompt]) == 0
    assert capsys.readouterr().out.startswith("weights")
    text = write_text(tmp_path / "text.txt")
    given = ["--checkpoint", str(basis), "--data", str(text), *SMALL.split()]
    tuned = tmp_path / "tuned"
    assert main(["finetune", *given, "--method", "lora", "--length", "8", "--out", str(tuned)]) == 0
    assert qkvflow.load(tuned).config.max_position_embeddings == 12


def test_a_model_without_a_tokenizer_is_imported_and_exported_and_said_to_have_none(tmp_path, capsys):
    write_gpt2(tmp_path / "gpt2")
    imported, out = tmp_path / "imported", tmp_path / "out"
    assert main(["import", "--gpt2", str(tmp_path / "gpt2"), "--out", str(imported)]) == 0
    assert "It has no tokenizer" in capsys.readouterr().out
    assert main(["export", "--checkpoint", str(imported), "--basis", "2", "--out", str(out)]) == 0
    assert "It has no tokenizer" in capsys.readouterr().out
    assert main(["generate", "--checkpoint", str(out), "--prompt", "a"]) == 2
    assert "holds a model without a tokenizer.json" in capsys.readouterr().err


def test_a_tokenizer_that_is_too_large_is_refused(tmp_path, capsys):
    write_gpt2(tmp_path / "gpt2", vocab_size=260)
    tokenizer = BPETokenizer.fit(["weights are curves over depth " * 20], 280)
    (tmp_path / "gpt2" / "tokenizer.json").write_text(tokenizer.json_text)
    assert main(["import", "--gpt2", str(tmp_path / "gpt2"), "--out", str(tmp_path / "out")]) == 2
    assert "The tokenizer does not fit the model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpt2", "a", "--llama", "b"], "expected one directory, with --gpt2 or --llama; got 2"),
        ([], "got 0"),
        (["--llama", "none"], "none is not there: expected a directory with config.json"),
    ],
)
def test_import_needs_one_directory(tmp_path, capsys, options, words):
    assert main(["import", *options, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err


def test_export_has_one_form_of_the_weights_and_a_loop_is_finetuned(base, tmp_path, capsys):
    checkpoint, text = map(str, base)
    given = ["--checkpoint", checkpoint, "--loop", "1x2", "--rank", "2"]
    assert main(["export", *given, "--basis", "2", "--out", str(tmp_path / "new")]) == 2
    assert "--basis and --loop exclude each other" in capsys.readouterr().err
    assert main(["export", *given, "--out", str(tmp_path / "loop")]) == 0
    assert "Relative error of the weights: " in capsys.readouterr().out
    tuning = ["--checkpoint", str(tmp_path / "loop"), "--data", text, "--out", str(tmp_path / "tuned")]
    assert main(["finetune", *tuning, *SMALL.split()]) == 0
    assert qkvflow.load(tmp_path / "tuned").config.weights.name == "looped"


def test_export_needs_a_whole_number_of_matrices(base, tmp_path, capsys):
    given = ["--checkpoint", str(base[0]), "--out", str(tmp_path / "new")]
    assert main(["export", *given, "--basis", "0"]) == 2
    assert "number of basis matrices is 0" in capsys.readouterr().err
    assert main(["export", *given, "--depth", "3", "--basis", "2"]) == 0
    model = qkvflow.load(tmp_path / "new")
    assert (model.config.time_embed_dim, model.config.num_layers) == (2, 3)
