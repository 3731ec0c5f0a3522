"""Preparing: exact, reused, checked, atomic, and small in memory."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from qkvflow.data import (
    SPLITS,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    DataError,
    coverage_note,
    load_corpus,
    open_dataset,
    prepare,
)
from qkvflow.files import read_sealed, write_sealed

CORPUS = load_corpus("markov:characters=300000")
TOKENIZERS = [
    ByteTokenizer(),
    CharTokenizer.fit(CORPUS.chunks("train")),
    BPETokenizer.fit(["some words, some more words\n" * 50], 280),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda t: t.kind)
def test_the_tokens_are_those_of_the_text(tmp_path, tokenizer):
    corpus = load_corpus("embedded")
    dataset = prepare(corpus, tokenizer, tmp_path)
    assert dataset.digest == corpus.digest and dataset.tokenizer == tokenizer
    text = "".join(corpus.chunks("valid"))
    split = dataset["valid"]
    np.testing.assert_array_equal(split.ids, tokenizer.encode(text))
    assert split.bytes == len(text.encode())
    assert isinstance(split.ids, np.memmap) and not split.ids.flags.writeable


def test_documents_of_a_split_are_joined_by_a_blank_line(tmp_path):
    for i in range(60):
        (tmp_path / f"{i}.txt").write_text(f"document {i}", encoding="utf-8")
    dataset = prepare(load_corpus(tmp_path), ByteTokenizer(), tmp_path / "cache")
    text = ByteTokenizer().decode(dataset["train"].ids)
    assert len(text.split("\n\n")) == 54


def test_a_second_call_reuses_and_another_tokenizer_does_not(tmp_path):
    first = prepare(CORPUS, TOKENIZERS[0], tmp_path)
    stamp = (first.directory / "train.bin").stat().st_mtime_ns
    again = prepare(CORPUS, TOKENIZERS[0], tmp_path)
    assert again.directory == first.directory
    assert (again.directory / "train.bin").stat().st_mtime_ns == stamp
    assert prepare(CORPUS, TOKENIZERS[1], tmp_path).directory != first.directory
    assert again.entropy_rate == CORPUS.entropy_rate


def test_several_at_once_end_with_one_sound_dataset(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: prepare(CORPUS, ByteTokenizer(), tmp_path), range(8)))
    assert {dataset.directory for dataset in made} == set(tmp_path.iterdir())
    open_dataset(made[0].directory)


def test_a_changed_file_is_another_dataset(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("some text\n" * 100, encoding="utf-8")
    before = prepare(load_corpus(path), ByteTokenizer(), tmp_path / "cache")
    path.write_text("some tExt\n" * 100, encoding="utf-8")
    after = prepare(load_corpus(path), ByteTokenizer(), tmp_path / "cache")
    assert before.digest != after.digest and before.directory != after.directory


@pytest.mark.parametrize("change", ["some tExt\n" * 100, "some text\n" * 50])
def test_a_file_that_changes_after_loading_is_noticed(tmp_path, change):
    path = tmp_path / "text.txt"
    path.write_text("some text\n" * 100, encoding="utf-8")
    corpus = load_corpus(path)
    path.write_text(change, encoding="utf-8")
    with pytest.raises(DataError, match="changed since it was loaded"):
        prepare(corpus, ByteTokenizer(), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def truncate(directory):
    path = directory / "valid.bin"
    path.write_bytes(path.read_bytes()[:-2])


def flip_a_bit(directory):
    data = bytearray((directory / "test.bin").read_bytes())
    data[1000] ^= 1
    (directory / "test.bin").write_bytes(data)


def remove_tokens(directory):
    (directory / "train.bin").unlink()


def remove_sidecar(directory):
    (directory / "dataset.json").unlink()


def cut_sidecar(directory):
    path = directory / "dataset.json"
    path.write_text(path.read_text(encoding="utf-8")[:200], encoding="utf-8")


def change_a_count(directory):
    path = directory / "dataset.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["splits"]["train"]["bytes"] += 1
    path.write_text(json.dumps(content), encoding="utf-8")


def newer_format(directory):
    path = directory / "dataset.json"
    content = json.loads(path.read_text(encoding="utf-8")) | {"format": 99}
    path.write_text(json.dumps(content), encoding="utf-8")


def older_format(directory):
    content = read_sealed(directory / "dataset.json", "dataset", 3)
    for split in SPLITS:
        del content["splits"][split]["lost_bytes"]
    write_sealed(directory / "dataset.json", "dataset", 1, content | {"format": 1})


def resealed(directory, change):
    content = read_sealed(directory / "dataset.json", "dataset", 3)
    change(content)
    write_sealed(directory / "dataset.json", "dataset", 3, content)


def no_bytes(directory):
    resealed(directory, lambda content: content["splits"]["valid"].update(bytes=0))


def another_tokenizer(directory):
    resealed(directory, lambda content: content.update(tokenizer={"kind": "char"}))


DAMAGES = [
    (truncate, "valid.bin has"),
    (flip_a_bit, "test.bin was changed"),
    (remove_tokens, "train.bin is missing"),
    (remove_sidecar, "dataset.json is missing"),
    (cut_sidecar, "dataset.json cannot be read"),
    (change_a_count, "dataset.json was changed"),
    (newer_format, "format 99, expected 3"),
    (older_format, "prepared by an earlier version"),
    (no_bytes, "does not say how large valid is"),
    (another_tokenizer, "tokenizer of kind 'char' cannot be used"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=lambda x: getattr(x, "__name__", ""))
def test_damage_is_refused_by_open_and_mended_by_prepare(tmp_path, damage, message):
    sound = prepare(CORPUS, ByteTokenizer(), tmp_path)
    before = np.array(sound["test"].ids)
    damage(sound.directory)
    with pytest.raises(DataError, match=message):
        open_dataset(sound.directory)
    with pytest.warns(UserWarning, match=message):
        mended = prepare(CORPUS, ByteTokenizer(), tmp_path)
    np.testing.assert_array_equal(mended["test"].ids, before)


def test_a_large_file_is_not_hashed(tmp_path, monkeypatch):
    dataset = prepare(CORPUS, ByteTokenizer(), tmp_path)
    flip_a_bit(dataset.directory)
    monkeypatch.setattr(sys.modules["qkvflow.data.prepare"], "CHEAP_TO_HASH", 10)
    open_dataset(dataset.directory)


def test_a_directory_under_a_foreign_name_is_made_again(tmp_path):
    one = prepare(CORPUS, TOKENIZERS[0], tmp_path)
    two = prepare(CORPUS, TOKENIZERS[1], tmp_path)
    place = one.directory
    (place / "dataset.json").unlink()
    for path in two.directory.iterdir():
        path.replace(place / path.name)
    with pytest.warns(UserWarning, match="another corpus or tokenizer"):
        assert prepare(CORPUS, TOKENIZERS[0], tmp_path).tokenizer == TOKENIZERS[0]


FULL_DISK = """
import resource, sys
from qkvflow.data import ByteTokenizer, DataError, load_corpus, prepare
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    prepare(load_corpus("markov:characters=300000"), ByteTokenizer(), sys.argv[1])
except DataError as error:
    print(error)
"""


def run(code, *arguments):
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file-size limit")
def test_a_full_disk_leaves_nothing_behind(tmp_path):
    message = run(FULL_DISK, tmp_path / "cache").stdout
    assert "could not be written: File too large" in message and "Free some space" in message
    assert not list((tmp_path / "cache").iterdir())


def test_an_abandoned_build_is_removed_and_a_recent_one_is_not(tmp_path):
    final = prepare(CORPUS, ByteTokenizer(), tmp_path).directory
    for path in (*final.iterdir(), final):
        path.rmdir() if path.is_dir() else path.unlink()
    old, recent = (tmp_path / f".{final.name}.{name}.part" for name in ("old", "recent"))
    for part in (old, recent):
        part.mkdir()
        (part / "train.bin").write_bytes(b"half")
    os.utime(old, (time.time() - 10**6,) * 2)
    prepare(CORPUS, ByteTokenizer(), tmp_path)
    assert not old.exists() and recent.exists()


MEMORY = """
import sys
from qkvflow.data import CharTokenizer, batch_at, load_corpus, prepare

def peak():
    lines = open("/proc/self/status").read().split("\\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

before = peak()
corpus = load_corpus(sys.argv[1])
dataset = prepare(corpus, CharTokenizer.fit(corpus.chunks("train")), sys.argv[2])
print(peak() - before)
for step in range(100):
    batch_at(dataset["train"].ids, digest=dataset.digest, seed=0, step=step,
             batch_size=8, length=128)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_100_mb_of_text_need_little_memory(tmp_path):
    path = tmp_path / "large.txt"
    block = "".join(f"line {i}: the quick brown fox, the lazy dog, naïveté\n" for i in range(20_000))
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < 100_000_000:
            file.write(block)
    prepared, trained = map(float, run(MEMORY, path, tmp_path / "cache").stdout.split())
    print(f"peak above the start: {prepared:.0f} MB to prepare, {trained:.0f} MB to train")
    assert prepared < 150 and trained < 150


def test_no_progress_is_shown_without_a_terminal(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("qkvflow.progress.PATIENCE", 0.0)
    prepare(CORPUS, ByteTokenizer(), tmp_path)
    assert capfd.readouterr().err == ""


def test_progress_is_shown_on_a_terminal_after_a_while(tmp_path, monkeypatch):
    pty = pytest.importorskip("pty")
    lead, follow = pty.openpty()
    terminal = os.fdopen(follow, "w")
    monkeypatch.setattr("qkvflow.progress.PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    prepare(CORPUS, ByteTokenizer(), tmp_path)
    terminal.flush()
    assert "tokenising markov" in os.read(lead, 100_000).decode()
    terminal.close()
    os.close(lead)


def test_an_unknown_split_is_named(tmp_path):
    dataset = prepare(CORPUS, ByteTokenizer(), tmp_path)
    for holder in (CORPUS, dataset):
        with pytest.raises(DataError, match="no split 'dev'.*train, valid, test"):
            holder["dev"]
    assert tuple(dataset.splits) == SPLITS
    assert dataset["valid"].bits_per_byte(1.0) == pytest.approx(1.442695)


def lossy_corpus(directory, lost):
    """Splits of 1000 bytes, of which the valid split has some that a tokenizer of a and b loses."""
    directory.mkdir()
    for split in SPLITS:
        strange = "z" * lost if split == "valid" else ""
        (directory / f"{split}.txt").write_text(strange + "ab" * 500, encoding="utf-8")
    return load_corpus(directory)


def test_what_a_tokenizer_loses_is_counted_kept_and_said(tmp_path):
    corpus = lossy_corpus(tmp_path / "text", lost=8)
    for _ in range(2):  # made, then from the cache
        dataset = prepare(corpus, CharTokenizer("ab"), tmp_path / "cache")
        assert [dataset[split].lost for split in SPLITS] == [0, 8, 0]
    assert dataset["valid"].bits_per_byte(0.0) == 8 * 8 / 1008
    note = coverage_note(dataset, 0.99)
    assert note.startswith("The tokenizer char loses text of text: 8 of 1,008 bytes of valid (0.79%).")
    assert coverage_note(dataset, 0.99, ["train"]) is None
    assert coverage_note(prepare(corpus, ByteTokenizer(), tmp_path / "cache"), 1.0) is None


def test_a_split_of_which_nothing_is_left_is_refused_like_any_other(tmp_path):
    for split in SPLITS:
        (tmp_path / f"{split}.txt").write_text("xyz" * 9 if split == "valid" else "ab" * 50)
    vocab = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
    drops = BPETokenizer.parse(json.dumps({"version": "1.0", **vocab}), "a test")
    with pytest.raises(DataError, match="27 of 27 bytes of valid"):
        coverage_note(prepare(load_corpus(tmp_path), drops, tmp_path / "cache"), 0.99)


def test_a_tokenizer_that_loses_too_much_is_refused_with_what_to_do(tmp_path):
    dataset = prepare(lossy_corpus(tmp_path / "text", 20), CharTokenizer("ab"), tmp_path / "cache")
    with pytest.raises(DataError, match=r"20 of 1,020 bytes.*--least-coverage 0.98"):
        coverage_note(dataset, 0.99)
    assert coverage_note(dataset, 0.98) is not None
