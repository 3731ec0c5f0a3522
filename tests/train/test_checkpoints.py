"""Checkpoints: kept, best, damaged in every way, killed runs, full disks, no pickles."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import qkvflow
from benchmarks.kill import run_and_kill
from qkvflow.files import FileError, read_sealed, write_sealed
from qkvflow.models.storage import ARRAYS, check_model, read_arrays, write_arrays
from qkvflow.train import train
from qkvflow.train.checkpoints import check_checkpoint, read_record, write_record
from qkvflow.train.run_files import checkpoint_paths
from tests.train.support import in_new_process, records, tiny_run, with_optimizer
from tests.train.test_loop import StopAt, final_bytes

ROOT = Path(__file__).parent.parent.parent
FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "training.json", "tokenizer.json")
RECIPE = "--architecture.flavour modern --optimizer.name muon --optimizer.ema 0.9"


def names(out):
    return [path.name for path in checkpoint_paths(out / "checkpoints")]


def test_the_newest_are_kept_and_the_best(text, tmp_path):
    out = tmp_path / "out"
    train(tiny_run(text, keep=1, save_every=1, eval_every=6), out)
    losses = {r["step"]: r["loss"] for r in records(out, "valid") if r["step"]}
    best = min(losses, key=losses.get)
    assert names(out) == [f"step-{step:08d}" for step in sorted({12, best}, reverse=True)]
    assert (out / "checkpoints" / "best").resolve().name == f"step-{best:08d}"
    qkvflow.load(out / "checkpoints" / "best")


def test_an_earlier_best_survives_later_checkpoints(text, tmp_path):
    """A learning rate at which the loss rises again after the first look."""
    out = tmp_path / "out"
    run = tiny_run(text, keep=2, save_every=2, eval_every=2, steps=12, eval_tokens=None)
    train(with_optimizer(run, learning_rate=2.0, warmup=12, clip=0.0), out)
    losses = {r["step"]: r["loss"] for r in records(out, "valid") if r["step"]}
    best = min(losses, key=losses.get)
    assert best < 10, losses
    assert set(names(out)) == {f"step-{step:08d}" for step in (12, 10, best)}
    assert check_checkpoint(out / "checkpoints" / "best")["progress"]["best"]["step"] == best


def test_a_checkpoint_says_what_it_is(text, tmp_path):
    out = tmp_path / "out"
    run = tiny_run(text)
    train(run, out)
    record = check_checkpoint(checkpoint_paths(out / "checkpoints")[0])
    assert record["version"] == qkvflow.__version__
    assert record["run"] == run.to_dict()
    assert record["seeds"] == [0]
    assert record["progress"]["step"] == 12
    assert len(record["data_digest"]) == 64
    assert set(record["files"]) == set(FILES) - {"training.json"}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def replace_by_a_foreign_file(path):
    path.write_bytes(b"PK\x03\x04 something else entirely")


def replace_by_a_sealed_file_of_another_kind(path):
    """A config.json where a training.json should be, and the other way round."""
    other = "config.json" if path.name == "training.json" else "training.json"
    path.write_bytes((path.parent / other).read_bytes())


def remove(path):
    path.unlink()


DAMAGES = (
    truncate,
    flip_a_bit,
    replace_by_a_foreign_file,
    replace_by_a_sealed_file_of_another_kind,
    remove,
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped on its way, and the final bytes of one that was not."""
    import jax

    base = tmp_path_factory.mktemp("stopped")
    from tests.train.support import write_text

    run = tiny_run(write_text(base / "text.txt"), keep=3)
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("QKVFLOW_CACHE", str(base / "cache"))
        train(run, base / "whole")
        train(run, base / "out", [StopAt(8)])
    return run, base / "out", final_bytes(base / "whole")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_newest_good_one_taken(stopped, tmp_path, damage, file):
    run, before, whole = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    newest, second = checkpoint_paths(out / "checkpoints")[:2]
    damage(newest / file)
    assert train(run, out).finished
    note = records(out, "note")[0]["text"]
    assert str(newest / file) in note
    assert (out / "checkpoints" / f"bad-{newest.name}").is_dir()
    assert final_bytes(out) == whole
    assert second.name in names(before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["files"].pop("model.safetensors"), "names no model.safetensors"),
        (lambda content: content["progress"].update(step=10**9), "its run has 12 steps"),
        (lambda content: content["progress"].update(step=-1), "its run has 12 steps"),
    ],
    ids=["no model", "step too late", "step too early"],
)
def test_a_record_with_the_right_seal_that_cannot_be_is_set_aside(stopped, tmp_path, change, words):
    run, before, whole = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    newest = checkpoint_paths(out / "checkpoints")[0]
    content = read_record(newest)
    change(content)
    write_record(newest, content)
    assert train(run, out).finished
    assert words in records(out, "note")[0]["text"]
    assert final_bytes(out) == whole


def test_parameters_that_are_no_numbers_are_named_on_resume(stopped, tmp_path):
    run, before, _ = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    newest = checkpoint_paths(out / "checkpoints")[0]
    record = read_record(newest)
    arrays = read_arrays(newest / ARRAYS, record["files"][ARRAYS])
    broken = {**arrays, "transformer.wte.weight": arrays["transformer.wte.weight"] * np.nan}
    record["files"][ARRAYS] = write_arrays(newest / ARRAYS, broken)
    write_record(newest, record)
    with pytest.raises(FileError, match="not finite, in transformer.wte.weight"):
        train(run, out)


def test_a_checkpoint_of_a_newer_version_is_recognised(stopped, tmp_path):
    run, before, whole = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    newest = checkpoint_paths(out / "checkpoints")[0]
    content = json.loads((newest / "training.json").read_text())
    (newest / "training.json").write_text(json.dumps({**content, "format": 99}))
    train(run, out)
    assert "a newer qkvflow wrote it" in records(out, "note")[0]["text"]
    assert final_bytes(out) == whole


def test_a_whole_checkpoint_of_another_run_in_between_is_recognised(stopped, tmp_path, text):
    """Its files agree with one another, but not with the run."""
    run, before, _ = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    train(tiny_run(text, model="standard"), tmp_path / "other")
    shutil.copytree(
        checkpoint_paths(tmp_path / "other" / "checkpoints")[0], out / "checkpoints" / "step-00000099"
    )
    with pytest.raises(FileError, match="is of another run.*'standard' there"):
        train(run, out)


def test_without_a_good_checkpoint_nothing_is_begun_or_removed(stopped, tmp_path):
    run, before, _ = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    for path in checkpoint_paths(out / "checkpoints"):
        truncate(path / "model.safetensors")
    kept = names(out)
    with pytest.raises(FileError) as error:
        train(run, out)
    assert "No checkpoint in" in str(error.value)
    assert all(f"{name}/model.safetensors" in str(error.value) for name in kept)
    assert names(out) == kept


def test_load_takes_the_newest_good_checkpoint_of_a_run_that_is_not_finished(stopped, tmp_path):
    _, before, _ = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    flip_a_bit(checkpoint_paths(out / "checkpoints")[0] / "model.safetensors")
    with pytest.warns(UserWarning, match="sha256 differs. Using the next older checkpoint"):
        qkvflow.load(out)


def test_the_link_to_the_best_is_mended_after_a_kill_between_rename_and_link(stopped, tmp_path):
    run, before, _ = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    best, other = (out / "checkpoints" / "best"), checkpoint_paths(out / "checkpoints")[-1]
    assert best.resolve() != other
    best.unlink()
    best.symlink_to(other.name)
    train(run, out)
    step = check_checkpoint(checkpoint_paths(out / "checkpoints")[0])["progress"]["best"]["step"]
    assert best.resolve().name == f"step-{step:08d}"
    check_checkpoint(best)


def test_a_best_checkpoint_that_is_damaged_is_no_longer_linked(stopped, tmp_path):
    run, before, _ = stopped
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    newest = checkpoint_paths(out / "checkpoints")[0]
    link = out / "checkpoints" / "best"
    link.unlink()
    link.symlink_to(newest.name)
    truncate(newest / "model.safetensors")
    train(run, out)
    check_checkpoint(link)


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"mu_dtype": "bfloat16"}},
        {"name": "noisy_sgd", "weight_decay": 0.0, "options": {"key": 1}},
    ],
)
def test_the_optimizer_may_keep_moments_in_bfloat16_or_a_random_key(text, tmp_path, changes):
    run = with_optimizer(tiny_run(text), **changes)
    train(run, tmp_path / "whole")
    train(run, tmp_path / "parts", [StopAt(5)])
    train(run, tmp_path / "parts")
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")


def test_a_finished_run_needs_its_checkpoints_no_more_and_is_still_itself(text, tmp_path):
    run, out = tiny_run(text), tmp_path / "out"
    train(run, out)
    shutil.rmtree(out / "checkpoints")
    assert train(run, out).finished
    with pytest.raises(FileError, match="final is of another run: steps is 12 there and 13 here"):
        train(tiny_run(text, steps=13), out)


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize(
    ("kills", "seeds", "fields"), [(4, 1, RECIPE), pytest.param(4, 2, "", marks=pytest.mark.slow)]
)
def test_kills_do_not_change_a_bit(tmp_path, monkeypatch, kills, seeds, fields):
    """A run that is killed again and again ends with the same bytes as one that is not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Where the machine is busy the run must not end before it can be caught.
    result = run_and_kill(tmp_path, kills, seeds, steps_a_kill=60, fields=fields)
    assert result["identical"], result
    for moment, how in result["caught"]:
        assert how is not None or moment == "at_the_end", result
    assert ("while_saving", "saving") in result["caught"], result


@pytest.fixture(scope="module")
def done(stopped, tmp_path_factory):
    """A finished run with its checkpoints."""
    run, out, whole = stopped
    return run, out.parent / "whole", whole


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, remove])
def test_a_damaged_trained_model_is_written_again_and_no_step_repeated(done, tmp_path, damage, file):
    run, before, whole = done
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    damage(out / "final" / file)
    assert train(run, out).finished
    assert final_bytes(out) == whole
    check_model(out / "final")
    note = records(out, "note")[0]["text"]
    assert str(out / "final" / file) in note
    assert "It is written again from" in note
    assert len(records(out, "compiled")) == 1, "no step was repeated"
    assert len(records(out, "final")) == 1
    assert (out / "bad-final").is_dir()
    assert train(run, out).finished


def test_a_trained_model_with_the_right_digests_that_cannot_be_read_is_written_again(done, tmp_path):
    run, before, whole = done
    out, final = tmp_path / "out", tmp_path / "out" / "final"
    shutil.copytree(before, out, symlinks=True)
    content = read_sealed(final / "config.json", "model", 2)
    arrays = read_arrays(final / ARRAYS, content["files"][ARRAYS])
    name = next(iter(arrays))
    content["files"][ARRAYS] = write_arrays(final / ARRAYS, arrays | {name: arrays[name] * np.nan})
    content = {key: value for key, value in content.items() if key not in ("kind", "format")}
    write_sealed(final / "config.json", "model", 2, content)
    assert train(run, out).finished
    assert final_bytes(out) == whole
    assert "numbers that are not finite" in records(out, "note")[0]["text"]


def test_a_file_where_the_trained_model_belongs_is_set_aside(done, tmp_path):
    run, before, whole = done
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    shutil.rmtree(out / "final")
    (out / "final").write_text("no directory")
    assert train(run, out).finished
    assert final_bytes(out) == whole


def test_a_damaged_trained_model_and_last_checkpoint_are_made_again(done, tmp_path):
    run, before, whole = done
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    flip_a_bit(out / "final" / "model.safetensors")
    truncate(checkpoint_paths(out / "checkpoints")[0] / "optimizer.safetensors")
    assert train(run, out).finished
    assert final_bytes(out) == whole


def test_a_damaged_trained_model_without_checkpoints_is_a_sentence(done, tmp_path):
    run, before, whole = done
    out = tmp_path / "out"
    shutil.copytree(before, out, symlinks=True)
    shutil.rmtree(out / "checkpoints")
    truncate(out / "final" / "model.safetensors")
    with pytest.raises(FileError, match="There is no checkpoint in .* Remove .*final to train"):
        train(run, out)
    shutil.rmtree(out / "final")
    assert train(run, out).finished
    assert final_bytes(out) == whole


FULL_DISK = """
import resource, signal, sys
from qkvflow.files import FileError
from qkvflow.train import Sink, train
from tests.train.support import tiny_run
text, out, limit = sys.argv[1:]
run = tiny_run(text, save_every=2, eval_every=100, steps=6)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
class Fill(Sink):
    def tick(self, step, loss):
        if step == 3:  # the checkpoint after step 2 is being written or there; later ones do not fit
            store[0].wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    def write(self, record): pass
from qkvflow.train import loop
store = []
class Watched(loop.CheckpointStore):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        store.append(self)
loop.CheckpointStore = Watched
try:
    train(run, out, [Fill()])
except FileError as error:
    print(error)
"""


def test_a_full_disk_is_a_sentence_and_the_checkpoint_before_it_loads(text, tmp_path):
    """A limit on the size of files stands for the disk; the metrics still fit, checkpoints do not."""
    out = tmp_path / "out"
    result = in_new_process(FULL_DISK, text, out, 5000, PYTHONPATH=str(ROOT))
    assert "the checkpoint after step 6 could not be written: File too large" in result.stdout, result
    assert "Free some space" in result.stdout
    assert "the checkpoint after step 4 could not be written" in records(out, "note")[0]["text"]
    assert names(out) == ["step-00000002"]
    assert not list((out / "checkpoints").glob(".*.part"))
    qkvflow.load(out)
    run = tiny_run(text, save_every=2, eval_every=100, steps=6)
    assert train(run, out).finished
    train(run, tmp_path / "whole")
    assert final_bytes(out) == final_bytes(tmp_path / "whole")


def test_a_disk_that_is_full_for_the_curve_is_a_sentence(text, tmp_path):
    result = in_new_process(FULL_DISK, text, tmp_path / "out", 700, PYTHONPATH=str(ROOT))
    assert "metrics.jsonl could not be written: File too large" in result.stdout, result
    assert "goes on from the last checkpoint" in result.stdout
    qkvflow.load(tmp_path / "out")


def test_nothing_in_the_project_loads_a_pickle():
    """Two documented files are written as pickles; that is all."""
    words = re.compile(
        r"\b(from pickle|pickle\.loads?|Unpickler|cloudpickle|joblib|np\.load|torch\.load)\b"
    )
    for path in (ROOT / "qkvflow").rglob("*.py"):
        assert not words.search(path.read_text()), path
