"""A run from end to end: what it leaves, resuming, intervals, interruption, failure, the lock."""

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import sys
import threading
import time

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qkvflow
from qkvflow.cli.main import main
from qkvflow.config import ConfigError, RunConfig, write_run
from qkvflow.data import DataError, NGramModel, load_corpus, make_tokenizer
from qkvflow.files import FileError
from qkvflow.generate import generate
from qkvflow.models import NeuralODELM, needs
from qkvflow.models.paths import arrays_of
from qkvflow.train import Sink, TrainingError, evaluation, loop, read_tokenizer, train
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
from tests.support import difference
from tests.train.support import (
    in_new_process,
    records,
    tiny_run,
    with_architecture,
    with_optimizer,
    write_text,
)


def final_bytes(out):
    return (out / "final" / "model.safetensors").read_bytes()


class StopAt(Sink):
    """Asks the process to stop once a step is finished, as a scheduler or Ctrl-C would."""

    def __init__(self, step, number=signal.SIGTERM):
        self.step, self.number = step, number

    def write(self, record):
        pass

    def tick(self, step, loss):
        if step == self.step:
            os.kill(os.getpid(), self.number)


def test_what_no_memory_can_hold_is_refused_before_it_is_tried(text, tmp_path):
    run = with_architecture(tiny_run(text), hidden_dim=2**17)
    with pytest.raises(TrainingError, match=r"optimizer needs [\d,.]+ GB of memory.* a smaller model"):
        train(run, tmp_path / "out")


def test_so_is_a_batch(text, tmp_path):
    run = dataclasses.replace(tiny_run(text), batch_size=10**9)
    with pytest.raises(TrainingError, match=r"A batch needs .* GB of memory.* a smaller batch_size"):
        train(run, tmp_path / "out")


def test_so_is_a_step_that_needs_too_much(text, tmp_path, monkeypatch):
    run = tiny_run(text)
    train(run, tmp_path / "before")
    needed = records(tmp_path / "before", "compiled")[0]["memory_bytes"]
    monkeypatch.setattr(needs, "memory_limit", lambda: needed - 1)
    with pytest.raises(TrainingError, match="A step needs .* Choose a smaller batch_size"):
        train(run, tmp_path / "out")
    copies = 2 * Program(run, open_data(run)).state_bytes
    monkeypatch.setattr(needs, "memory_limit", lambda: needed + copies - 1)
    with pytest.raises(TrainingError, match="A step while a checkpoint is written needs"):
        train(run, tmp_path / "out")
    monkeypatch.setattr(needs, "memory_limit", lambda: needed + copies)
    assert train(run, tmp_path / "out").finished


def test_a_run_leaves_a_model_a_curve_and_its_settings(text, tmp_path):
    out = tmp_path / "out"
    run = tiny_run(text)
    outcome = train(run, out)
    assert outcome.finished
    assert outcome.step == 12
    model = qkvflow.load(out)
    assert isinstance(model, NeuralODELM)
    tokenizer = read_tokenizer(out)
    ids = hax.named(jnp.asarray(tokenizer.encode("a"), jnp.int32)[None], ("batch", "position"))
    assert len(tokenizer.decode(generate(model, ids, 5, temperature=0.0).array[0])) == 6
    assert (out / "run.yaml").is_file()
    assert [r["step"] for r in records(out, "train")] == list(range(1, 13))
    assert [r["step"] for r in records(out, "valid")] == [0, 4, 8, 12]
    for record in records(out, "train"):
        assert record["tokens"] == record["step"] * 32
        assert record["flops"] > 0
        assert record["seconds"] > 0
    assert len(records(out, "final")) == 1
    assert records(out, "final")[0]["whole"]


def test_the_loss_falls(text, tmp_path):
    out = tmp_path / "out"
    train(tiny_run(text, steps=60, eval_every=10, save_every=60, eval_tokens=None), out)
    losses = {r["step"]: r["loss"] for r in records(out, "valid")}
    assert losses[60] < losses[0] - 0.5


@pytest.mark.parametrize("changes", [{"eval_every": 5}, {"save_every": 12, "log_every": 7}])
def test_intervals_do_not_touch_the_result(text, tmp_path, changes):
    run = tiny_run(text)
    train(run, tmp_path / "one")
    train(dataclasses.replace(run, **changes), tmp_path / "other")
    assert final_bytes(tmp_path / "one") == final_bytes(tmp_path / "other")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_saves_and_goes_on_to_the_same_end(text, tmp_path, number):
    run = tiny_run(text, save_every=100)
    train(run, tmp_path / "whole")
    outcome = train(run, tmp_path / "parts", [StopAt(5, number)])
    assert not outcome.finished
    assert 5 <= outcome.step < 8
    assert not (tmp_path / "parts" / "final").exists()
    assert train(run, tmp_path / "parts").finished
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")
    whole, parts = (
        [(r["step"], r["loss"]) for kind in ("train", "valid") for r in records(out, kind)]
        for out in (tmp_path / "whole", tmp_path / "parts")
    )
    assert whole == parts


class InterruptAt(Sink):
    """Asks the process to stop when a record of some kind is written."""

    def __init__(self, kind):
        self.kind = kind

    def write(self, record):
        if record["kind"] == self.kind:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("kind", ["start", "compiled", "valid"])
def test_before_the_first_step_an_interrupt_ends_it_at_once_and_loses_nothing(text, tmp_path, kind):
    run, usual = tiny_run(text), signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "parts", [InterruptAt(kind)])
    signal.signal(signal.SIGINT, usual)
    assert not list((tmp_path / "parts" / "checkpoints").iterdir())
    assert train(run, tmp_path / "parts").finished
    train(run, tmp_path / "whole")
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")


BUSY = """
import hashlib, signal, sys
from contextlib import nullcontext
from qkvflow.interrupt import leave, leave_when_interrupted, stop_when_asked
signal.signal(signal.SIGINT, signal.default_int_handler)
leave_when_interrupted("Interrupted.")
try:
    with stop_when_asked() if sys.argv[1] == "taken" else nullcontext():
        print("busy", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # Python cannot be asked meanwhile, as in XLA
except KeyboardInterrupt:
    leave("Interrupted.")
"""


@pytest.mark.parametrize(("kind", "signals"), [("free", 1), ("taken", 2)])
def test_a_process_that_compiles_ends_within_seconds_of_an_interrupt(kind, signals):
    """The first of two signals is the training's, which takes the time that it needs."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "busy\n"
    time.sleep(0.2)
    for i in range(signals):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20 if i == signals - 1 else 1)
        assert (process.returncode is None) == (i < signals - 1)
    assert process.communicate() == ("", "Interrupted.\n")
    assert process.returncode == 130


def test_a_finished_run_is_not_begun_again(text, tmp_path):
    run = tiny_run(text)
    train(run, tmp_path / "out")
    before = final_bytes(tmp_path / "out")
    assert train(run, tmp_path / "out").finished
    assert final_bytes(tmp_path / "out") == before


def test_several_seeds_in_one_run(text, tmp_path):
    run = with_optimizer(tiny_run(text, seeds=2, seed=3), name="sgd", weight_decay=0.0)
    train(run, tmp_path / "both", [StopAt(7)])
    assert train(run, tmp_path / "both").finished
    with pytest.raises(FileError, match="several models; name one of them"):
        qkvflow.load(tmp_path / "both")
    assert {r["seed"] for r in records(tmp_path / "both", "valid")} == {3, 4}
    for seed in (3, 4):
        train(dataclasses.replace(run, seeds=1, seed=seed), tmp_path / str(seed))
        one = qkvflow.load(tmp_path / "both" / "final" / f"seed-{seed}")
        alone = qkvflow.load(tmp_path / str(seed))
        assert difference(arrays_of(one), arrays_of(alone)) < 1e-5


def test_a_loss_that_is_not_finite_ends_the_run_with_advice_and_good_checkpoints(text, tmp_path):
    run = with_optimizer(tiny_run(text, save_every=1), learning_rate=1e16, clip=0.0, warmup=0)
    with pytest.raises(TrainingError) as error:
        train(run, tmp_path / "out")
    for words in ("at step 4", "learning_rate", "another directory", "last good checkpoint"):
        assert words in str(error.value)
    skipped = [r["step"] for r in records(tmp_path / "out", "note")]
    assert skipped == [2, 3, 4]
    assert [path.name for path in (tmp_path / "out" / "checkpoints").glob("step-*")] == [
        "step-00000001"
    ]
    model = qkvflow.load(tmp_path / "out")
    assert all(np.isfinite(array).all() for array in arrays_of(model).values())


@pytest.mark.parametrize("steps", [2, 12])
def test_an_update_that_is_not_finite_is_no_success(text, tmp_path, steps):
    """Where a character is not in the batch adamw divides zero by zero: at every step."""
    run = with_optimizer(tiny_run(text, steps=steps, save_every=1), options={"eps": 0.0})
    with pytest.raises(TrainingError, match="optimizer.options") as error:
        train(run, tmp_path / "out")
    assert ("the last step was not applied" in str(error.value)) == (steps == 2)
    notes = [record["text"] for record in records(tmp_path / "out", "note")]
    left_out = [note for note in notes if note.startswith("Step ")]
    assert len(left_out) == min(steps, 3)
    assert "with them parameters or the optimizer's state would not be finite" in left_out[0]
    assert not (tmp_path / "out" / "final").exists()
    write_run(run, tmp_path / "run.yaml")
    assert main(["train", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]) == 3


def test_a_loss_that_is_not_finite_at_the_end_is_no_success(text, tmp_path, monkeypatch):
    def evaluate(*arguments, **options):
        return dataclasses.replace(evaluation.evaluate(*arguments, **options), loss=math.nan)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    with pytest.raises(TrainingError, match="the loss on the valid split is not finite at the end"):
        train(tiny_run(text), tmp_path / "out")
    assert not (tmp_path / "out" / "final").exists()


def test_the_second_process_on_a_directory_refuses(text, tmp_path):
    """While this process is in the middle of a run there."""
    out = tmp_path / "out"
    code = (
        "import sys; from qkvflow.cli.main import main;"
        "sys.exit(main(['train', '--steps', '200', '--data', sys.argv[1], '--out', sys.argv[2]]))"
    )
    refused = []

    class Second(Sink):
        def write(self, record):
            if not refused:
                refused.append(in_new_process(code, text, out))

    assert train(tiny_run(text), out, [Second()]).finished
    assert refused[0].returncode == 2
    assert f"Another process ({os.getpid()}) is writing to {out}" in refused[0].stderr


def test_changed_data_is_noticed_on_resume(text, tmp_path):
    run = tiny_run(text)
    train(run, tmp_path / "out", [StopAt(5)])
    write_text(text, seed=1)
    with pytest.raises(FileError, match="has changed since this run began"):
        train(run, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "standard"}, "model is 'time_indexed_mlp' there and 'standard' here"),
        ({"steps": 13}, "steps is 12 there and 13 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
    ],
)
def test_another_run_is_refused(text, tmp_path, changes, words):
    run = tiny_run(text)
    train(run, tmp_path / "out", [StopAt(5)])
    with pytest.raises(FileError) as error:
        train(dataclasses.replace(run, **changes), tmp_path / "out")
    assert words in str(error.value)
    if "model" in changes:
        assert "absent" in str(error.value)


def test_another_depth_is_refused_with_both_shapes(text, tmp_path):
    run = tiny_run(text, model="standard")
    train(run, tmp_path / "out", [StopAt(5)])
    deeper = dataclasses.replace(run.architecture, num_layers=3)
    with pytest.raises(FileError) as error:
        train(dataclasses.replace(run, architecture=deeper), tmp_path / "out")
    assert "architecture.num_layers is 2 there and 3 here" in str(error.value)
    assert "(2, 8) there and (3, 8) here" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "standart"}, ConfigError, "Did you mean 'standard'?"),
        ({"data": "embeded"}, DataError, "Did you mean 'embedded'?"),
        ({"length": 100_000}, DataError, "one window of length 100000 needs"),
        ({"tokenizer": "chars"}, DataError, "no tokenizer 'chars'"),
        ({"data": "~nosuchuser/text"}, FileError, "~nosuchuser/text cannot be found"),
        ({"trackers": ("wandb",)}, ConfigError, "wandb is not installed"),
    ],
)
def test_a_run_that_cannot_be_made_fails_before_it_begins(text, tmp_path, changes, error, words):
    if changes.get("trackers") and _installed("wandb"):
        pytest.skip("wandb is installed")
    run = dataclasses.replace(tiny_run(text), **changes)
    with pytest.raises(error, match=words.replace("?", r"\?")):
        train(run, tmp_path / "out")
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
    assert not (tmp_path / "out" / "checkpoints").exists()


def _installed(package):
    import importlib.util

    return importlib.util.find_spec(package) is not None


def test_a_run_on_a_text_whose_name_is_no_utf_8_is_resumed(text, tmp_path):
    name = text.rename(tmp_path / os.fsdecode(b"t\xe9xt.txt"))
    run = tiny_run(name)
    assert not train(run, tmp_path / "out", [StopAt(5)]).finished
    assert train(run, tmp_path / "out").finished
    assert records(tmp_path / "out", "start")[-1]["step"] >= 5


@pytest.mark.parametrize("field", ["data", "tokenizer"])
def test_a_name_that_is_empty_is_not_the_working_directory(field):
    with pytest.raises(ConfigError, match=f"{field} is empty; expected a name or a path"):
        RunConfig(**{field: ""})


def with_strangers(directory, count):
    """Text whose valid split, of 2000 bytes, has characters that the others have not."""
    directory.mkdir()
    for split in ("train", "valid", "test"):
        words = write_text(directory / f"{split}.txt", 3000).read_text()[:2000]
        strange = "z" * count if split == "valid" else ""
        (directory / f"{split}.txt").write_text(strange + words[len(strange) :])
    return directory


def test_what_the_tokenizer_loses_is_noted_and_counted(tmp_path):
    data, out = with_strangers(tmp_path / "text", 8), tmp_path / "out"
    assert not train(tiny_run(data), out, [StopAt(5)]).finished
    # Allowing less does not make it another run.
    assert train(tiny_run(data, least_coverage=0.9), out).finished
    (note,) = records(out, "note")
    assert "The tokenizer char loses text of text: 8 of 2,000 bytes of valid (0.40%)" in note["text"]
    (final,) = records(out, "final")
    assert final["bits_per_byte"] == pytest.approx(final["loss"] / math.log(2) + 8 * 8 / 2000)


def test_a_tokenizer_that_loses_too_much_is_refused_unless_it_is_allowed(tmp_path):
    data = with_strangers(tmp_path / "text", 40)
    with pytest.raises(DataError, match="40 of 2,000 bytes of valid.*--least-coverage 0.98"):
        train(tiny_run(data), tmp_path / "out")
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
    assert open_data(tiny_run(data, least_coverage=0.98))["valid"].coverage == 0.98


def test_tokens_that_are_never_targets_are_noted(tmp_path):
    (tmp_path / "text.txt").write_text("weights " * 10)
    short = tiny_run(tmp_path / "text.txt", length=24, batch_size=1, steps=4)
    assert train(short, tmp_path / "out").finished
    (note,) = records(tmp_path / "out", "note")
    assert note["text"].startswith(
        "24 of the 72 tokens of the train split, those at its end, are never"
    )
    long = tiny_run(write_text(tmp_path / "long.txt"))
    assert loop.about_text(long, open_data(long)) == []


def test_seconds_are_those_until_a_step_is_finished(text, tmp_path):
    """The last record of the steps and the look after them, which takes no time that counts, agree."""
    train(tiny_run(text), tmp_path / "out")
    steps = {r["step"]: r["seconds"] for r in records(tmp_path / "out", "train")}
    assert steps[12] == records(tmp_path / "out", "final")[0]["seconds"]
    assert sorted(steps.values()) == list(steps.values())


def test_an_adaptive_integrator_that_gives_up_ends_the_run_with_its_advice(text, tmp_path):
    run = with_architecture(tiny_run(text), integrator={"method": "adaptive", "max_steps": 1})
    run = dataclasses.replace(run, eval_every=100)
    with pytest.raises(TrainingError, match="max_steps"):
        train(run, tmp_path / "out")


@pytest.mark.parametrize("name", ["checkpoints", "run.yaml", "metrics.jsonl"])
def test_a_place_that_is_taken_by_something_else_is_a_sentence(text, tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("") if name == "checkpoints" else (out / name).mkdir()
    with pytest.raises(FileError, match=f"The run cannot be saved in .*{name}"):
        train(tiny_run(text), out)


def test_a_directory_that_cannot_be_written(text, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written: .*file is a file. Name another"):
        train(tiny_run(text), tmp_path / "file")


def test_training_works_from_a_thread_where_signals_cannot_be_caught(text, tmp_path):
    outcomes = []

    def in_thread():
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            outcomes.append(train(tiny_run(text), tmp_path / "out"))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert outcomes[0].finished


def test_training_goes_on_while_a_checkpoint_is_written(text, tmp_path, monkeypatch):
    """The write of the checkpoint after step 6 does not end before step 9 is finished."""
    from qkvflow.train import checkpoints

    write, later, waited = checkpoints.CheckpointStore.write, threading.Event(), []

    def slow(store, state, progress):
        if progress.step == 6:
            waited.append(later.wait(timeout=20))
        return write(store, state, progress)

    class Watch(Sink):
        def write(self, record):
            pass

        def tick(self, step, loss):
            if step == 9:
                later.set()

    monkeypatch.setattr(checkpoints.CheckpointStore, "write", slow)
    train(tiny_run(text, save_every=6, eval_every=100), tmp_path / "out", [Watch()])
    assert waited == [True]


def test_a_model_of_more_than_a_word_beats_the_unigram(text, tmp_path):
    """The evaluation is the model's own: an n-gram table of order 1 is a floor that it passes."""
    run = tiny_run(text, steps=60, eval_every=60, save_every=60)
    train(run, tmp_path / "out")
    corpus = load_corpus(str(text))
    tokenizer = make_tokenizer("char", corpus)
    ids = {s: tokenizer.encode("".join(corpus.chunks(s))) for s in ("train", "valid")}
    unigram = NGramModel.fit(ids["train"], vocab_size=tokenizer.vocab_size, order=1)
    final = records(tmp_path / "out", "final")[0]
    assert final["loss"] < unigram.nats_by_order(ids["valid"])[-1]
    assert math.isclose(final["bits_per_byte"], final["loss"] / math.log(2), rel_tol=0.02)
