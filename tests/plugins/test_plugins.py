"""Plugins: executed once, only when the user names them, and sentences where they cannot be."""

import dataclasses
import hashlib
import json
import shutil

import jax
import pytest

from qkvflow import plugins
from qkvflow.cli.main import main
from qkvflow.cli.options import OptionError, split_option
from qkvflow.config import RunConfig, read_run, write_run
from qkvflow.config.yaml_files import recorded_run
from qkvflow.data import CORPORA, load_corpus
from qkvflow.experiments.plan import Plan, read_plan
from qkvflow.files import FileError
from qkvflow.plugins import check_loaded, check_same, digests, load_plugins, needed_by
from qkvflow.train import train
from tests.train.support import tiny_run

WORDS = """
from qkvflow.data import CORPORA, SPLITS, TextDocument, make_corpus

@CORPORA.register("words")
def words(options, reading):
    texts = {split: [TextDocument(split, "one two three " * 40)] for split in SPLITS}
    return make_corpus("words", "words", texts, rule="none")
"""


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.py"
    path.write_text(WORDS)
    return path


def test_a_file_is_executed_once_and_its_names_count(words):
    load_plugins([words])
    load_plugins([str(words), words])
    assert load_corpus("words").name == "words"
    assert digests() == {"words.py": hashlib.sha256(WORDS.encode()).hexdigest()}
    assert plugins.files() == [words]


def test_the_option_is_taken_out_of_the_arguments(words):
    given = ["--steps", "-3", "--plugin", str(words), f"--plugin={words}", "--out", "x", "-h"]
    files, rest = split_option(given, "--plugin")
    assert files == [str(words), str(words)]
    assert rest == ["--steps", "-3", "--out", "x", "-h"]
    with pytest.raises(OptionError, match="--plugin needs a file"):
        split_option(["--plugin"], "--plugin")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def f(:\n", "is not valid Python: line 1: "),
        ("x = 1\0", "is not valid Python: "),
        ("x = 1\n", "registers nothing. Expected a line such as @CORPORA.register"),
        ("\n\nx = 1 / 0\n", "cannot be used: line 3: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('stop')\n", "cannot be used: line 2: SystemExit: stop"),
        (f"{WORDS}\nimport no_such_module\n", "line 9: ModuleNotFoundError: No module named"),
        (WORDS.replace('"words")', '"markov")', 1), "line 4: ConfigError: The corpus cannot be"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_sentence_and_leaves_nothing(tmp_path, text, sentence):
    path, before = tmp_path / "idea.py", dict(CORPORA)
    path.write_text(text)
    with pytest.raises(FileError) as error:
        load_plugins([path])
    assert sentence in str(error.value)
    assert str(path) in str(error.value)
    assert dict(CORPORA) == before
    assert digests() == {}
    path.write_text(WORDS)
    load_plugins([path])  # mended, it can be loaded by the same process


def test_a_file_that_is_not_there_is_a_sentence_of_the_command(capsys, tmp_path):
    assert main(["train", "--out", str(tmp_path / "out"), "--plugin", "/no/idea.py"]) == 2
    assert "The plugin /no/idea.py cannot be read: No such file" in capsys.readouterr().err


def test_two_files_of_one_name_are_told_apart(words, tmp_path):
    load_plugins([words])
    words.write_text(f"{WORDS}# changed\n")
    with pytest.raises(FileError, match="differs from"):
        load_plugins([words])


def test_an_installed_package_is_loaded_by_its_entry_point(tmp_path, monkeypatch):
    (tmp_path / "installed_idea.py").write_text(WORDS)
    info = tmp_path / "installed_idea-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-idea\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qkvflow.plugins]\nidea = installed_idea\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load_installed()
    assert "words" in CORPORA
    assert list(digests()) == ["idea"]
    plugins.load_installed()
    assert plugins.files() == [], "another process loads it by itself"
    monkeypatch.setattr(plugins, "_loaded", {})
    (info / "entry_points.txt").write_text("[qkvflow.plugins]\nidea = no_such_idea\n")
    with pytest.raises(FileError, match="The installed plugin idea .no_such_idea. cannot be used"):
        plugins.load_installed()


def test_what_a_run_of_the_user_names_is_executed_and_what_a_record_names_is_not(words, tmp_path):
    write_run(RunConfig(data="words", plugins=(str(words),)), tmp_path / "run.yaml")
    recorded = recorded_run(tmp_path / "run.yaml")
    assert "words" not in CORPORA
    with pytest.raises(FileError, match="This run needs .*words.py, which is not loaded"):
        check_loaded("This run", recorded.plugins)
    assert read_run(tmp_path / "run.yaml") == recorded
    assert "words" in CORPORA
    check_loaded("This run", recorded.plugins)


def test_what_a_plan_names_is_executed_before_its_runs_are_made(words, tmp_path):
    fields = {"plugins": [str(words)], "arms": {"one": {}}, "base": {"data": "words"}}
    (tmp_path / "plan.yaml").write_text(json.dumps(fields))
    Plan.of(fields)
    assert "words" not in CORPORA, "tables are data"
    assert read_plan(str(tmp_path / "plan.yaml")).arms[0].run.plugins == (str(words),)
    assert "words" in CORPORA
    for wrong in ({"base": {"plugins": []}}, {"arms": {"base": {"plugins": []}}}):
        with pytest.raises(ValueError, match="base: plugins belong to the experiment; put them"):
            Plan.of({**fields, **wrong})
    with pytest.raises(ValueError, match="plugins is 'words.py'; expected a list"):
        Plan.of({**fields, "plugins": "words.py"})


def test_going_on_needs_the_same_bytes(words):
    recorded = {"words.py": "0" * 64}
    with pytest.raises(FileError, match="RUN needs words.py, which is not loaded: name the file with"):
        check_same("RUN", recorded)
    load_plugins([words])
    check_same("RUN", digests())
    own = digests()["words.py"][:12]
    with pytest.raises(FileError, match=f"sha256 of words.py was 000000000000 and is {own}"):
        check_same("RUN", recorded)


def test_a_model_is_read_with_a_warning_about_another_plugin(words):
    recorded = {"words.py": "0" * 64}
    with needed_by("MODEL", recorded):
        pass  # a plugin that is not needed may be left out
    refused = pytest.raises(FileError, match="MODEL needs words.py.* Without it: no such thing")
    with refused, needed_by("MODEL", recorded):
        raise ValueError("no such thing")
    load_plugins([words])
    with pytest.warns(UserWarning, match="MODEL was made"), needed_by("MODEL", recorded):
        pass


@pytest.fixture
def _ordinary_promotion():
    """Optax promotes types."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.usefixtures("_ordinary_promotion")
def test_a_checkpoint_holds_the_digests_and_a_changed_plugin_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    load_plugins([words])
    run, out = tiny_run("words", steps=2, save_every=2, plugins=("words.py",)), tmp_path / "run"
    train(run, out)
    shutil.rmtree(out / "final")
    record = json.loads((out / "checkpoints" / "step-00000002" / "training.json").read_text())
    assert record["plugins"] == digests()
    moved = dataclasses.replace(run, plugins=("elsewhere/words.py",))
    assert train(moved, out).finished, "the same bytes from another place"
    shutil.rmtree(out / "final")
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(CORPORA, "_entries", {})
    words.write_text(f"{WORDS}# changed\n")
    load_plugins([words])
    with pytest.raises(
        FileError, match="step-00000002 was begun with another plugin: the sha256 of words"
    ):
        train(run, out)
