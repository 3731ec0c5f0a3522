"""Whatever comes in at a boundary is a working object, or one of our own errors with a sentence.

Valid input is changed at random places into what nobody expects; `make fuzz` does so at length.
What went wrong once is an example, which always runs.
"""

import copy
import json
import math
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from qkvflow.cli.main import main
from qkvflow.config import ConfigError, Gpt2Config, RunConfig
from qkvflow.config.history import moved_architecture, moved_run
from qkvflow.config.yaml_files import read_yaml_text, recorded_run
from qkvflow.data import DataError, load_corpus, read_tokenizer_files
from qkvflow.data.bpe import BPETokenizer
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import (
    AtBest,
    Choice,
    Evaluation,
    Swept,
    choices_of_json,
    choices_to_json,
    record_of_json,
    record_to_json,
)
from qkvflow.experiments.report import experiment_page
from qkvflow.experiments.results import read_experiment, write_results
from qkvflow.files import FileError, file_sha256, read_json, read_sealed, write_json, write_sealed
from qkvflow.finetune import load_adapter
from qkvflow.models import import_gpt2, import_llama
from qkvflow.train import load_model, read_metrics, read_tokenizer
from qkvflow.train.checkpoints import CheckpointStore
from qkvflow.train.resume import find_saved
from qkvflow.train.step import Learner
from tests.experiments.support import made_up_record, tiny_fields
from tests.models.gpt2_files import CONFIG, cut_in_two, write_gpt2, write_llama

OURS = (ConfigError, DataError, FileError)
ROOT = Path(__file__).parent.parent
FORMAT1 = ROOT / "tests" / "unchanged" / "format1"
SAVED_MODEL = FORMAT1 / "run" / "checkpoints" / "step-00000004"
TINY = (ROOT / "configs" / "tiny.yaml").read_text()

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 3, 2**31, 2**63, 2**64, 10**12, 10**40, 10**400, -(10**30)]),
    st.sampled_from([0.0, -0.5, 0.1, 1e-320, 1e308, math.inf, -math.inf, math.nan]),
    st.sampled_from(
        ["", "x", "gated", "standard", "~nobody/x", "../..", "/dev/zero", "1e3", "\0", "\ud800"]
    ),
    st.sampled_from([[], [[]], {}, {"": None}, [1, "a"], {"family": "gated"}, {"part": 3}]).map(
        copy.deepcopy  # so that none comes to be inside of itself
    ),
    st.text(max_size=6),
    st.integers(),
    st.floats(),
)
"""What nobody expects."""


@st.composite
def changed(draw, value, most=3):
    """A JSON-like value in which a few entries are others, gone, or new."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, most))):
        value = _changed_once(draw, value)
    return value


def _changed_once(draw, value):
    places = list(_places(value)) if isinstance(value, dict | list) else []
    if not places or draw(st.integers(0, 19)) == 0:
        return draw(ODD)
    inside, key = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
    if kind == "remove":
        del inside[key]
    elif kind == "add" and isinstance(inside, dict):
        inside[draw(st.text(max_size=4))] = draw(ODD)
    else:
        inside[key] = draw(ODD)
    return value


def _places(value):
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(entries):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def ours(function, *arguments):
    """What a function gives, or None where it refuses its input with a sentence of ours."""
    try:
        return function(*arguments)
    except OURS as error:
        assert 10 < len(str(error)) < 20_000, "a sentence"
        return None


ARCHITECTURE = Gpt2Config(weights="gated", parts=("attention", "ssm"), integrator="euler").to_dict()
HUGE = [
    *({name: 10**400} for name in ("hidden_dim", "num_layers", "num_heads", "vocab_size")),
    {"num_layers": 10**9},
    {"sinusoidal_dim": 10**10},
    {"mlp_ratio": 1e308},
    {"parts": ["attention", {"part": "ssm", "conv_width": 10**7}]},
]


def built(fields):
    config = Gpt2Config.from_dict(fields if isinstance(fields, dict) else {})
    assert Gpt2Config.from_dict(config.to_dict()) == config
    return config


@given(changed(ARCHITECTURE))
@settings(suppress_health_check=list(HealthCheck))
def test_architectures(fields):
    ours(built, fields)


@pytest.mark.parametrize("huge", HUGE, ids=str)
def test_sizes_that_no_machine_has_are_refused_at_once(huge, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("one two three four five six seven " * 40)
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({"data": str(tmp_path / "text.txt"), "architecture": huge, "length": 8})
    )
    options = ["--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    assert main(["train", *options]) in (2, 3)
    assert capsys.readouterr().err


RUN = RunConfig(data="embedded", architecture=Gpt2Config(hidden_dim=16, num_heads=2)).to_dict()


@given(changed(RUN))
@example({**RUN, "batch_size": 10**12})
@example({**RUN, "seeds": 10**9})
@example({**RUN, "bpe_size": 10**20})
@example({**RUN, "data": ""})
@example([])
def test_runs(fields):
    if isinstance(fields, dict):
        run = ours(lambda: RunConfig.from_dict(moved_run(fields)))
        assert run is None or RunConfig.from_dict(run.to_dict()) == run


SWEEP = {"learning_rates": [1e-3, 2e-3], "steps": 3, "also": {"optimizer.weight_decay": [0.0, 0.1]}}


@given(changed(tiny_fields("text.txt", sweep=SWEEP, judge_best=True)))
@example(tiny_fields("text.txt", sweep={**SWEEP, "also": {"optimizer.": [0, 1], "..": [0, 1]}}))
@example(tiny_fields("text.txt", sweep={**SWEEP, "also": {"architecture.bias": [0, 1]}}))
@example(tiny_fields("text.txt", sweep={**SWEEP, "also": {"optimizer.clip": [0, 10**400]}}))
@example({**tiny_fields("text.txt"), "sweep": {"learning_rates": [1, 10**400]}})
@example({**tiny_fields("text.txt"), "margin": math.nan})
@example({**tiny_fields("text.txt"), "margin": math.inf})
@example({**tiny_fields("text.txt"), "seeds": 10**12})
@example({**tiny_fields("text.txt"), "seeds": [2**40]})
@example({**tiny_fields("text.txt"), "arms": {1: {}, "1": {}}})
@example({**tiny_fields("text.txt"), "arms": {"A": {}, "a": {}}})
@example({**tiny_fields("text.txt"), "sweep": {"learning_rates": [1e-3, math.inf]}})
@example({**tiny_fields("text.txt"), "sweep": {"learning_rates": [1e-3, 1e-3 + 1e-12]}})
def test_plans(fields):
    if isinstance(fields, dict):
        plan = ours(lambda: Plan.of(fields).checked())
        assert plan is None or math.isfinite(plan.margin)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi")
)


@given(st.one_of(st.text(), st.text("[]{}:,-&*!|>'\"# \n\tax1", max_size=60)))
@example(BOMB)
@example("a: 2024-99-99")
@example("a: !!int abc")
@example("a: " + "9" * 5000)
@example("a: " + "9" * 190_000)
@example("a: " + "[" * 3000 + "]" * 3000)
@example("a: .nan\nb: .inf\n? [x]\n: 1")
def test_yaml(text):
    content = ours(read_yaml_text, text)
    assert content is None or len(repr(content)) < 10**6


@given(st.integers(0, len(TINY)), st.text(max_size=8), st.integers(0, 12))
def test_yaml_that_was_valid_once(place, inserted, cut):
    content = ours(read_yaml_text, TINY[:place] + inserted + TINY[place + cut :])
    if content is not None:
        ours(lambda: RunConfig.from_dict(moved_run(content)))


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
@example(b"[" * 100_000)
@example(b"9" * 5000)
@example(b'{"a": NaN}')
def test_json_files(content):
    path = Path("content.json")
    path.write_bytes(content)
    ours(read_json, path)


_BEST = AtBest(3, Evaluation(1.4, 2.0, 0.1, True, 9), None, 1.0, 0.5, 20.0, ((3, 1.5),))
RECORD = record_to_json(replace(made_up_record("standard", 0, 1.5, steps=6), best=_BEST))


_CHOICE = Choice.of([(1e-3, 2.0), (2e-3, None)])
_SETTINGS = (Swept.of("optimizer.clip", [(0.0, 2.0), (1.0, None)]),)


@given(changed(RECORD))
@example({})
@example([])
@example(None)
@example({**RECORD, "status": "failed", "error": ""})
@example({**RECORD, "machine": {}})
@example({**RECORD, "valid": {**RECORD["valid"], "loss": 1e308}})
def test_records(content):
    record = ours(record_of_json, content, "here")
    assert record is None or record_to_json(record)


@given(changed(choices_to_json({"a": _CHOICE, "b": replace(_CHOICE, settings=_SETTINGS)})))
@example([])
def test_choices(content):
    ours(choices_of_json, content, "here")


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))


def reported(out):
    experiment = read_experiment(out)
    write_results(experiment)
    return experiment_page("title", experiment, {})


@given(changed(RECORD), st.one_of(st.just({}), ODD))
@settings(suppress_health_check=list(HealthCheck))
@example(RECORD, {})
@example(RECORD, choices_to_json({"standard": replace(_CHOICE, settings=_SETTINGS)}))
@example({**RECORD, "valid": {**RECORD["valid"], "loss": 1e4}}, {})
@example({**RECORD, "parameters": 0}, {})
@example({**RECORD, "curve": []}, {})
@example({**RECORD, "curve": [], "run": {**RECORD["run"], "start": {"train": "all"}}}, {})
@example({**RECORD, "run": {**RECORD["run"], "tokenizer": None}}, {})
@example({**RECORD, "status": "failed", "error": "\n"}, {})
def test_experiments(record, odd):
    """Records and choices of an experiment that somebody has edited: all that is made of them."""
    out = Path("experiment")
    shutil.rmtree(out, ignore_errors=True)
    for arm, seed in (("standard", 1), ("gated", 0), ("gated", 1)):
        place = out / "runs" / arm / f"seed-{seed}.json"
        write_json(place, record_to_json(made_up_record(arm, seed, 1.4 + seed / 9, steps=6)))
    (out / "plan.yaml").write_text(yaml.safe_dump(tiny_fields("x.txt")))
    (out / "runs" / "standard" / "seed-0.json").write_text(json.dumps(record))
    (out / "tuned.json").write_text(json.dumps(odd))
    page = ours(reported, out)
    assert page or json.dumps([record, odd]) != json.dumps([RECORD, {}])


TEXT = "a weight, é"
TOKENIZER = json.loads(BPETokenizer.fit(["a weight is a curve over depth " * 9], 260).json_text)


@given(changed(TOKENIZER))
@settings(suppress_health_check=list(HealthCheck))
@example(
    {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "?"}}
)
def test_tokenizer_files(content):
    path = Path("tokenizer.json")
    path.write_text(json.dumps(content))
    tokenizer = ours(read_tokenizer_files, path)
    if tokenizer is not None:
        ids = ours(tokenizer.encode, TEXT)
        assert ids is None or ids.max(initial=0) < tokenizer.vocab_size
        assert ids is None or 0 <= tokenizer.lost_bytes(TEXT, ids) <= len(TEXT.encode())


SAVED = json.loads((SAVED_MODEL / "tokenizer.json").read_text())


@given(st.one_of(changed(SAVED), changed({"kind": "bpe", "tokenizer": TOKENIZER})))
@settings(suppress_health_check=list(HealthCheck))
@example([])
@example({"kind": "char"})
@example({"kind": "char", "symbols": 3})
@example({"kind": "char", "symbols": ["a", "b"]})
@example({"kind": "bpe"})
@example({"kind": "byte", "x": 1})
def test_tokenizers_of_models(content):
    """Files with the right digest and another content."""
    place = Path("model")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(SAVED_MODEL, place)
    (place / "tokenizer.json").write_text(json.dumps(content))
    sha256 = file_sha256(place / "tokenizer.json")
    resealed(
        place / "config.json",
        "model",
        lambda of: {**of, "files": {**of["files"], "tokenizer.json": sha256}},
    )
    tokenizer = ours(read_tokenizer, place)
    assert tokenizer is None or ours(tokenizer.encode, TEXT) is None or tokenizer.vocab_size


@given(st.text(max_size=12).map("markov:".__add__))
@settings(suppress_health_check=list(HealthCheck))
@example("markov:characters=100000000000000")
@example("~nobody/x")
@example("/dev/zero")
@example("")
@example("caf\udce9")
@example("\ud800")
def test_texts(name):
    ours(load_corpus, name)


@given(changed(CONFIG))
@settings(suppress_health_check=list(HealthCheck))
@example({**CONFIG, "n_embd": 0})
@example({**CONFIG, "n_layer": 10**6})
@example({**CONFIG, "n_head": "4"})
@example({**CONFIG, "layer_norm_epsilon": None})
def test_gpt2_directories(config):
    write_gpt2(Path("gpt2"))
    (Path("gpt2") / "config.json").write_text(json.dumps(config))
    ours(import_gpt2, "gpt2")


@given(st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_llama_directories(data):
    place, names = Path("llama"), ("config.json", "model.safetensors.index.json")
    if not place.is_dir():
        write_llama(place)
        cut_in_two(place)
        shutil.copytree(place, "whole")
    for name in names:
        shutil.copy(Path("whole") / name, place / name)
    name = data.draw(st.sampled_from(names))
    content = data.draw(changed(json.loads((place / name).read_text())))
    (place / name).write_text(json.dumps(content))
    ours(import_llama, "llama")


def resealed(path, kind, change):
    """The sealed file with other content and the right seal."""
    content = read_sealed(path, kind, 2)
    form = content.pop("format")
    del content["kind"]
    write_sealed(path, kind, form, change(content))


SEALED = {
    "model": ("run/checkpoints/step-00000004", "config.json"),
    "checkpoint": ("run/checkpoints/step-00000004", "training.json"),
    "adapter": ("adapted/adapter", "adapter.json"),
}


def read_changed(kind, change):
    """What comes of the files of a run of which one has another content and the right seal."""
    folder, name = SEALED[kind]
    place = Path("sealed")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(FORMAT1, place)
    resealed(place / folder / name, kind, change)
    read = {
        "model": lambda: (load_model(place / folder), read_tokenizer(place / folder)),
        "checkpoint": lambda: resumed(place / "run"),
        "adapter": lambda: load_adapter(load_model(place / "run"), place / folder),
    }
    return ours(read[kind])


@cache
def begun():
    """The run of the first format, and the state that its checkpoint holds."""
    run = recorded_run(FORMAT1 / "run" / "run.yaml")
    size = read_tokenizer(FORMAT1 / "run").vocab_size
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax needs it
        learner = Learner.of(run, run.model_config(size))
        return run, learner.model, jax.eval_shape(learner.start, np.uint32(0))


def resumed(out):
    """All that `train` reads of a checkpoint, as it reads it."""
    run, model, shapes = begun()
    saved = find_saved(out, run)
    store = CheckpointStore(out, run, model, saved.tokenizer, saved.record["data_digest"])
    return store.read(saved.path, saved.record, shapes)


@pytest.mark.parametrize("kind", SEALED)
@given(data=st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_sealed_files_with_the_right_seal(kind, data):
    def change(content):
        found = data.draw(changed(content))
        assume("Infinity" not in json.dumps(found) and "NaN" not in json.dumps(found))
        return found if isinstance(found, dict) else {}

    read_changed(kind, change)


def other_progress(**changes):
    return lambda content: {**content, "progress": {**content["progress"], **changes}}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, lambda content: {}) for kind in SEALED),
        *((kind, lambda content: {**content, "files": {}}) for kind in SEALED),
        *((kind, lambda content: {**content, "files": []}) for kind in SEALED),
        ("model", lambda content: {**content, "architecture": []}),
        ("checkpoint", other_progress(step=10**9)),
        ("checkpoint", other_progress(step=-1)),
        ("checkpoint", other_progress(best=[])),
        ("checkpoint", lambda content: {**content, "run": {**content["run"], "seeds": 2}}),
        ("adapter", lambda content: {**content, "layers": "2"}),
    ],
)
def test_sealed_files_that_were_read_once(kind, change):
    assert read_changed(kind, change) is None
    assert read_changed(kind, lambda content: content) is not None


@pytest.mark.parametrize(
    "fields", [{"parts": False}, {"adapter": ["lora"]}, {"weights": [1]}, {"integrator": {}}]
)
def test_architectures_of_the_first_layout(fields):
    old = json.loads((FORMAT1 / SEALED["model"][0] / "config.json").read_text())["architecture"]
    assert ours(lambda: Gpt2Config.from_dict(moved_architecture({**old, **fields}))) is None


@given(st.lists(st.one_of(ODD, changed({"kind": "valid", "step": 3, "loss": 1.0, "seconds": 0.1}))))
@example([{}, {"kind": "final"}, {"kind": "train", "step": 1, "loss": "low", "seconds": 0.1}])
@example([{"kind": "note", "step": 1}, {"kind": ["train"], "step": 1}, {"kind": "valid", "step": "1"}])
def test_metrics(lines):
    path = Path("metrics.jsonl")
    path.write_text("\n".join(json.dumps(line) for line in lines), errors="replace")
    for record in read_metrics(path):
        assert isinstance(record["step"], int)


COMMANDS = ("train", "evaluate", "generate", "analyze", "finetune", "import", "export", "experiment")
WORDS = st.one_of(
    st.sampled_from(
        ["--steps", "--out", "--checkpoint", "--data", "--config", "--plan", "--depth", "-h"]
    ),
    st.sampled_from(["", "report", "pack", "all", "nowhere", "1", "nan", "~nobody/x", "[peers]"]),
    st.text(max_size=5),
)


@given(st.sampled_from(COMMANDS), st.lists(WORDS, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("generate", ["--prompt", "a", "--temperature", "nan"])
@example("generate", ["--prompt", "a", "--temperature", "1e-40"])
@example("generate", ["--prompt", "a", "--temperature", "1e300"])
@example("train", ["--out", ""])
@example("experiment", ["run", "--out", "~nobody/x"])
@example("train", ["--plugin", "/dev/zero"])
@example("import", ["--gpt2", "file", "--out", "file/out"])
@example("experiment", ["cost", "--timed-steps", "1000000000"])
@example("experiment", ["run", "--slurm", "1000000000", "--out", "file/out"])
def test_command_lines(command, words):
    """Nothing that can begin: every checkpoint is missing, every output is below a file."""
    Path("file").write_text("")
    needed = {"train": ["--out", "file/out"], "experiment": []}.get(
        command, ["--checkpoint", "nowhere"]
    )
    try:
        assert main([command, *needed, *words]) in (0, 2)
    except SystemExit as end:
        assert end.code in (0, 2)
