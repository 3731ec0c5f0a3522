"""Files that are there whole or not at all."""

import functools
import os
import threading
import time
from pathlib import Path

import pytest

from qkvflow.files import (
    FileError,
    building,
    expanded,
    parse_json,
    read_json,
    read_sealed,
    remove_abandoned,
    write_bytes,
    write_json,
    write_text,
)
from qkvflow.lock import locked, waiting


def together(functions):
    """Call them side by side, and wait for all."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_file_is_written_whole_into_a_directory_that_is_made(tmp_path):
    path = tmp_path / "some" / "where.json"
    write_json(path, {"a": [1, None]})
    assert read_json(path) == {"a": [1, None]}
    assert os.listdir(path.parent) == ["where.json"]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(FileError, match="taken cannot be written"):
        write_bytes(path, b"x")
    assert os.listdir(tmp_path) == ["taken"]
    write_json(tmp_path / "old.json", 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "old.json", float("nan"))
    assert read_json(tmp_path / "old.json") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 3000 + "]" * 3000, "it nests tables or lists more than 100 deep"),
        ('{"a":' * 300 + "1" + "}" * 300, "it nests tables or lists more than 100 deep"),
        ("[" * 100_000, "it nests tables or lists more than 100 deep"),
        ("9" * 5000, "99999999999999999999 is not a finite number"),
        ("-" + "9" * 400, "is not a finite number"),
        ("1e999", "1e999 is not a finite number"),
        ("[NaN]", "NaN is not a finite number"),
        ('{"a": -Infinity}', "-Infinity is not a finite number"),
        ('{"a": 1, "a": 2}', "a name is given twice"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
        ("{", "Expecting"),
    ],
    ids=lambda text: text[:12],
)
def test_json_that_nothing_here_writes_is_a_sentence(tmp_path, text, words):
    path = tmp_path / "file.json"
    path.write_text(text)
    for read in (read_json, lambda path: read_sealed(path, "model", 1)):
        with pytest.raises(FileError, match=f"file.json (is not JSON|cannot be read): .*{words}"):
            read(path)


def test_json_of_any_finite_numbers_and_texts_is_read():
    assert parse_json('{"a": [1, -2.5e3, "\\ud83d\\ude00", null, true]}') == {
        "a": [1, -2500.0, "\N{GRINNING FACE}", None, True]
    }
    assert parse_json("9" * 300) == int("9" * 300)
    assert parse_json('"caf\\udce9"') == os.fsdecode(b"caf\xe9"), "a name of a file"


def test_processes_of_one_number_do_not_share_a_temporary_file(tmp_path, monkeypatch):
    """On two machines they may have one."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    path, failures = tmp_path / "file", []

    def write():
        try:
            for _ in range(50):
                write_bytes(path, b"x" * 1000)
        except FileError as error:
            failures.append(error)

    together([write] * 4)
    assert failures == []


def test_what_was_abandoned_is_removed_be_it_a_file_or_a_directory(tmp_path):
    (tmp_path / ".a.part").mkdir()
    (tmp_path / ".a.part" / "x").write_text("x")
    (tmp_path / ".b.part").write_text("half")
    (tmp_path / ".c.part").symlink_to("nowhere")
    (tmp_path / "kept").write_text("whole")
    remove_abandoned(tmp_path, older_than=3600.0)
    assert len(os.listdir(tmp_path)) == 4, "another process may be at work on it"
    remove_abandoned(tmp_path)
    assert os.listdir(tmp_path) == ["kept"]


def test_processes_that_build_side_by_side_do_not_disturb_each_other(tmp_path):
    failures = []

    def build(name):
        try:
            for i in range(60):
                with building(tmp_path / f"{name}-{i}") as directory:
                    (directory / "x").write_text("x")
        except OSError as error:
            failures.append(error)

    together([functools.partial(build, name) for name in "abc"])
    assert failures == []


def test_who_waits_has_the_lock_when_it_is_free(tmp_path):
    order = []

    def wait():
        with waiting(tmp_path):
            order.append("second")

    with locked(tmp_path):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


def test_a_lock_on_a_full_disk_is_a_sentence(tmp_path):
    (tmp_path / ".lock").symlink_to("/dev/full")
    with pytest.raises(FileError, match="cannot be written: .*Free some space"), locked(tmp_path):
        pass


def test_a_path_of_no_user_and_an_empty_one_are_sentences():
    assert expanded("~/x") == Path.home() / "x"
    with pytest.raises(FileError, match="~nosuchuser/x cannot be found"):
        expanded("~nosuchuser/x")
    with pytest.raises(FileError, match="A path is empty"):
        expanded("")
    with pytest.raises(FileError, match="holds a NUL byte"):
        expanded("a\0b")


def test_nothing_else_expands_paths():
    """One that is not sure of its user would be a traceback."""
    sources = (Path(__file__).parents[1] / "qkvflow").rglob("*.py")
    assert [path.name for path in sources if "expanduser" in path.read_text()] == ["files.py"]


def test_a_text_may_name_a_file_whose_name_is_no_utf_8(tmp_path):
    write_text(tmp_path / "page.html", os.fsdecode(b"caf\xe9") + ", é")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "caf\\udce9, é"
