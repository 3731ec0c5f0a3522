"""Hostile input: a clear sentence each, before any work starts."""

import errno
import os
from pathlib import Path

import pytest

from qkvflow.data import ByteTokenizer, DataError, load_corpus, prepare
from qkvflow.data.text import BLOCK_BYTES


def refused(path, *words):
    with pytest.raises(DataError) as caught:
        load_corpus(path)
    message = str(caught.value)
    assert message.endswith(".") and all(word in message for word in words), message
    return message


@pytest.mark.parametrize(
    ("name", "help"),
    [
        ("wikitext2", "Did you mean 'wikitext-2'?"),
        ("embeded", "Did you mean 'embedded'?"),
        ("./no/such/file.txt", "Known: addition, embedded, "),
    ],
)
def test_a_missing_path_names_the_nearest_corpus(name, help):
    refused(name, "no corpus and no file", help)


def test_an_empty_file_and_an_empty_directory(tmp_path):
    (tmp_path / "empty.txt").touch()
    refused(tmp_path / "empty.txt", "is empty", "Give a file")
    (tmp_path / "directory").mkdir()
    refused(tmp_path / "directory", "holds 0 text files", "at least 3")


def test_a_directory_with_one_empty_split(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("ab" if split != "valid" else "", encoding="utf-8")
    refused(tmp_path, "valid split", "is empty")


def test_a_directory_that_lacks_a_split(tmp_path):
    (tmp_path / "train.txt").write_text("some text", encoding="utf-8")
    refused(tmp_path, "holds train.txt but not valid.txt and test.txt")


@pytest.mark.parametrize("offset", [0, 7, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 77])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3(", b"\xe4\xb8"])
def test_invalid_utf8_is_named_with_file_and_offset(tmp_path, offset, bad):
    good = ("é" * (BLOCK_BYTES + 50)).encode()
    good = b"a" * (offset % 2) + good[: offset - offset % 2]
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_bytes(b"ab" if split != "train" else good + bad)
    refused(tmp_path, "train.txt is not valid UTF-8", f"offset {offset} ")


@pytest.mark.parametrize("offset", [1, 5, BLOCK_BYTES - 1, BLOCK_BYTES + 3])
def test_binary_data_is_named_with_file_and_offset(tmp_path, offset):
    """Two-byte characters from an odd place on: one of them lies across the end of a block."""
    path = tmp_path / "program"
    path.write_bytes(b"x" + "é".encode() * (offset // 2) + b"\0" + b"\x80" * 10 + b"y" * 20 * offset)
    refused(path, "program is binary data", f"NUL byte at offset {offset}.")


def test_utf16_gets_a_hint(tmp_path):
    (tmp_path / "windows.txt").write_text("some text\n" * 100, encoding="utf-16")
    refused(tmp_path / "windows.txt", "UTF-8")


def test_a_single_symbol_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 10_000, encoding="utf-8")
    refused(tmp_path / "a.txt", "single symbol 'a', 9000 times", "nothing to learn")


def test_two_symbols_are_enough(tmp_path):
    (tmp_path / "ab.txt").write_text("ab" * 100, encoding="utf-8")
    assert load_corpus(tmp_path / "ab.txt")["train"].characters == 180


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "neither a file nor a directory")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self/mem", "/proc/cpuinfo"])
def test_devices_and_what_has_no_size_are_not_read(path):
    if not os.path.exists(path):
        pytest.skip(f"this system has no {path}")
    refused(path, path, "Give a file" if path.startswith("/proc") else "give a text file")


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    """As on a disk that fails, where the system names no file."""
    (tmp_path / "text.txt").write_text("some text\n" * 100, encoding="utf-8")

    def fail(path, mode):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", fail)
    refused(tmp_path / "text.txt", "cannot be read: Input/output error")


def test_names_that_are_no_utf_8(tmp_path):
    directory = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(directory)
    for number in range(4):
        with open(directory + b"/%d\xe9.txt" % number, "w", encoding="utf-8") as file:
            file.write(f"text {number} " * 20)
    corpus = load_corpus(os.fsdecode(directory))
    dataset = prepare(corpus, ByteTokenizer(), tmp_path / "cache")
    assert dataset["valid"].bytes == corpus["valid"].bytes


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_text("some text", encoding="utf-8")
    path.chmod(0)
    refused(path, "cannot be read")


@pytest.mark.parametrize("inside", ["cache", "cache/deeper"])
def test_a_cache_directory_that_cannot_be_written(tmp_path, inside):
    """A file stands where the directory should be: not even root can write there."""
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    corpus = load_corpus("markov:characters=1000")
    with pytest.raises(DataError, match="could not be written.*choose another"):
        prepare(corpus, ByteTokenizer(), tmp_path / inside)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_directory(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="could not be written: Permission denied"):
        prepare(load_corpus("markov:characters=1000"), ByteTokenizer(), tmp_path / "cache")
