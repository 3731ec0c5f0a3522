"""`qkvflow analyze`: every study of a tiny checkpoint, and what it says to what cannot be."""

import json

import jax
import pytest

from qkvflow.cli.main import main
from qkvflow.data import CharTokenizer
from qkvflow.models.storage import save_model
from tests.support import random_model, small_config
from tests.train.support import WORDS, write_text

TOKENIZER = CharTokenizer("".join(sorted(set(" ".join(WORDS)))))


@pytest.fixture(autouse=True)
def _as_usual(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("COLUMNS", "100")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def checkpoint(directory, name, **changes):
    config = small_config(
        vocab_size=TOKENIZER.vocab_size, max_position_embeddings=24, hidden_dim=8, **changes
    )
    save_model(random_model(name, config), directory, tokenizer=json.dumps(TOKENIZER.to_dict()))
    return str(directory)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model that is quick to compile and has few figures."""
    directory = tmp_path_factory.mktemp("models") / "plain"
    return checkpoint(directory, "time_indexed_mlp", parts=("mlp",))


FEW = ["--exponents", "2", "--refine", "1", "--probes", "4", "--windows", "2", "--length", "8"]


def test_all_of_a_model_with_a_corpus(plain, tmp_path, capsys):
    out, text = tmp_path / "out", write_text(tmp_path / "text.txt")
    options = ["--text", "weights are curves", "--data", str(text), "--out", str(out)]
    assert main(["analyze", "all", "--checkpoint", plain, *options, *FEW]) == 0
    printed = capsys.readouterr().out
    for words in (
        "largest exponent of the sequence",
        "2 windows, 95%",
        "eigenvalue|, feed-forward",
        "spread",
    ):
        assert words in printed
    assert "analysis.html" in printed
    assert {path.name for path in out.iterdir()} == {
        "analysis.html",
        "figures",
        *(
            f"{kind}.{end}"
            for kind in ("spectra", "lyapunov", "trajectory", "modulation", "capacity")
            for end in ("npz", "json")
        ),
    }


@pytest.mark.parametrize("kind", ["spectra", "lyapunov", "trajectory", "modulation", "capacity"])
def test_each_study_by_itself(plain, tmp_path, capsys, kind):
    options = ["--checkpoint", plain, "--out", str(tmp_path), "--times", "4", "--position", "3"]
    assert main(["analyze", kind, *options, *FEW]) == 0
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".npz", ".json", ".html"}
    assert "left out" not in capsys.readouterr().out


def test_all_says_what_it_leaves_out(tmp_path, capsys):
    model = checkpoint(tmp_path / "model", "shared", parts=("mlp",))
    options = ["--checkpoint", model, "--out", str(tmp_path / "out"), "--text", "a curve", *FEW]
    assert main(["analyze", "all", *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "modulation is left out: the weights of this model are shared" in printed
    assert "modulation is left out" in (tmp_path / "out" / "analysis.html").read_text()
    assert main(["analyze", "modulation", *options]) == 2
    assert "no gate, scale or coefficient depends on depth" in capsys.readouterr().err


def test_the_adaptive_integrator_has_weights_but_no_layers(tmp_path, capsys):
    changes = {"parts": ("mlp",), "integrator": "adaptive"}
    model = checkpoint(tmp_path / "model", "time_indexed_mlp", **changes)
    options = ["--checkpoint", model, "--out", str(tmp_path / "out"), "--text", "a curve"]
    for kind in ("lyapunov", "trajectory"):
        assert main(["analyze", kind, *options]) == 2
        assert "adaptive integrator has no grid" in capsys.readouterr().err
    assert main(["analyze", "all", *options]) == 0
    assert "lyapunov is left out" in capsys.readouterr().out
    assert (tmp_path / "out" / "spectra.json").is_file()


def test_qk_spectra_of_a_model_without_attention_are_a_sentence(tmp_path, capsys):
    model = checkpoint(tmp_path / "model", "shared", parts=("mlp",))
    options = ["--checkpoint", model, "--out", str(tmp_path / "out")]
    assert main(["analyze", "spectra", *options, "--circuits", "qk"]) == 2
    assert "qk belongs to attention, and this model is made of mlp" in capsys.readouterr().err


def test_unknown_characters_are_noticed(plain, tmp_path, capsys):
    options = ["--checkpoint", plain, "--out", str(tmp_path), "--text", "a [b] ß?"]
    assert main(["analyze", "trajectory", *options]) == 0
    assert "The tokenizer loses 6 bytes of the text" in capsys.readouterr().out


def test_a_corpus_that_the_tokenizer_loses_is_refused(plain, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("ÄÖÜ weights\n" * 100)
    given = [
        "--checkpoint",
        plain,
        "--data",
        str(tmp_path / "other.txt"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["analyze", "modulation", *given, *FEW]) == 2
    assert "expected at most 1.00%" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["analyze", "modulation", *given, *FEW, "--least-coverage", "0"]) == 0
    assert "loses text of other.txt" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text", ""], "the text has 0 tokens; expected at least 2"),
        (["--text", "a" * 30], "the text has 30 tokens and the model takes 24"),
        (["--text", "a layer", "--position", "7"], "position is 7 in a text of 7 tokens; expected 0"),
        (["--text", "a layer", "--position", "-8"], "position is -8"),
        (["--windows", "0"], "windows is 0; expected at least 1"),
        (["--times", "0"], "times is 0; expected at least 1"),
        (["--probes", "1"], "probes is 1; expected 2 to"),
        (["--exponents", "0", "--length", "99"], "length is 99; expected 2 to 24"),
        (["--data", "/no/such/text"], "no corpus and no file named '/no/such/text'"),
        (["--out", "/proc/none"], "/proc/none cannot be made"),
        (["--checkpoint", "/no/model"], "is not there: expected a directory with"),
    ],
)
def test_mistakes_show_before_any_work(plain, tmp_path, capsys, options, words):
    given = ["--checkpoint", plain, "--out", str(tmp_path / "out"), *options]
    assert main(["analyze", "all", *given]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()


def test_more_windows_than_there_are_is_a_sentence(plain, tmp_path, capsys):
    text = write_text(tmp_path / "text.txt")
    options = ["--checkpoint", plain, "--data", str(text), "--windows", "500"]
    assert main(["analyze", "lyapunov", *options]) == 2
    assert "has 11 windows of 24 tokens, so expected 1 to 11" in capsys.readouterr().err
