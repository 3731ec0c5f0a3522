"""What can be asked of a run when it has ended, and what is shown to who watches."""

import dataclasses
import io
import sys
import types

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from qkvflow.config import ConfigError, RunConfig
from qkvflow.files import FileError
from qkvflow.generate import generate, stream
from qkvflow.progress import drawing, in_notebook, progress
from qkvflow.train import Outcome, train
from qkvflow.train.watching import Bar
from tests.train.support import tiny_run, trained_base, with_optimizer


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return Outcome(trained_base(tmp_path_factory.mktemp("outcome")), 12, finished=True)


def test_the_curve_is_plain_numbers(outcome):
    kinds = [point["kind"] for point in outcome.history]
    assert (kinds.count("train"), kinds.count("valid"), kinds[-1]) == (12, 4, "final")
    names = ["kind", "step", "seconds", "tokens", "flops", "loss"]
    assert all(list(point) == names for point in outcome.history)
    assert outcome.history[-1]["loss"] < outcome.history[0]["loss"]
    assert outcome.run.steps == 12


def test_the_curve_is_drawn(outcome):
    drawn = outcome.plot()
    (axes,) = drawn.axes
    learned, seen = (line.get_xydata() for line in axes.lines)
    assert len(learned) == 12 and len(seen) == 5
    assert seen[-1].tolist() == [12, outcome.history[-1]["loss"]]
    assert isinstance(drawn, Figure) and drawn._repr_png_().startswith(b"\x89PNG")


def test_the_model_writes_text_longer_than_its_window(outcome):
    text = outcome.generate("weights ", 12)
    assert text.startswith("weights ") and len(text) == len("weights ") + 12
    assert len(text) > outcome.model.config.max_position_embeddings
    assert text == outcome.generate("weights ", 12) != outcome.generate("weights ", 12, seed=1)


def test_a_text_is_what_its_stream_says_window_by_window(outcome):
    model, tokenizer, key = outcome.model, outcome.tokenizer, jax.random.key(5)
    whole = generate(model, "weights ", 30, tokenizer=tokenizer, key=key)
    ids = hax.named(jnp.asarray(tokenizer.encode("weights "), jnp.int32)[None], ("batch", "position"))
    assert model.config.max_position_embeddings < 30
    blocks = [block.array for block in stream(model, ids, 30, key=key)]
    assert whole == "weights " + tokenizer.decode(np.concatenate(blocks, axis=1)[0])


def test_a_text_needs_the_tokenizer(outcome):
    greedy = generate(outcome.model, "a", 3, tokenizer=outcome.tokenizer, temperature=0.0)
    assert greedy == outcome.generate("a", 3, temperature=0.0)
    with pytest.raises(ConfigError, match="the prompt is a text, and a text needs its tokenizer"):
        generate(outcome.model, "a", 3)


def test_what_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(FileError, match="holds no model|is not there|does not exist"):
        _ = Outcome(tmp_path / "no", 0, finished=False).model


class Notebook:
    """What IPython shows below a cell."""

    def __init__(self):
        self.shown = []
        self.kernel = None

    def display(self, data, raw, display_id):
        self.update(data, raw)
        return self

    def update(self, data, raw):
        self.shown.append(data["text/plain"])


@pytest.fixture
def notebook(monkeypatch):
    """IPython, as a notebook has it."""
    own = Notebook()
    modules = {name: types.ModuleType(name) for name in ("IPython", "IPython.display")}
    modules["IPython"].get_ipython = lambda: own
    modules["IPython.display"].display = own.display
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("qkvflow.progress.OFTEN", 0.0)
    return own


def test_a_notebook_has_a_bar_and_a_command_that_draws_its_own_has_not(outcome, notebook):
    assert in_notebook()
    bar = Bar(RunConfig(steps=4))
    bar.write({"kind": "start", "step": 0})
    bar.write({"kind": "valid", "step": 0, "loss": 5.5})
    bar.tick(2, 5.0)
    bar.close()
    assert "compiling" in notebook.shown[1]
    assert "2/4  loss 5.000  valid 5.500" in notebook.shown[-1]


def test_train_shows_a_bar_unless_somebody_else_does(tmp_path, text, monkeypatch):
    made = []
    monkeypatch.setattr("qkvflow.train.loop.Bar", lambda run: made.append(run) or Bar(run))
    run = with_optimizer(tiny_run(text), warmup=1)
    run = dataclasses.replace(run, steps=1)
    train(run, tmp_path / "watched")
    train(run, tmp_path / "quiet", [])
    assert made == [run]


def test_nothing_is_shown_where_nobody_watches(capfd):
    bar = Bar(RunConfig(steps=4))
    bar.write({"kind": "start", "step": 0})
    bar.write({"kind": "note", "step": 0, "text": "a note"})
    bar.tick(2, 5.0)
    bar.close()
    assert capfd.readouterr() == ("", "")


def test_other_waits_have_a_bar_in_a_notebook_too(notebook, monkeypatch):
    monkeypatch.setattr("qkvflow.progress.PATIENCE", -1.0)
    with progress("tokenising", total=10) as advance:
        advance(5)
        advance(5)
    assert notebook.shown[-1].startswith("tokenising █") and "10/10" in notebook.shown[-1]


def test_a_terminal_has_a_bar_too(monkeypatch):
    from contextlib import ExitStack

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with ExitStack() as stack:
        drawing("shared", 4, stack)(2, "loss 2.000")
    assert "shared" in sys.stderr.getvalue() and "loss 2.000" in sys.stderr.getvalue()
