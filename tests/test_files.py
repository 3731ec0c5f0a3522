"""Files that are there whole or not at all."""

import functools
import os
import threading
import time

import pytest

from qkvflow.files import FileError, building, read_json, remove_abandoned, write_bytes, write_json
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
