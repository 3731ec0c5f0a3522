"""Processes that share an experiment on one machine: their cores, their work, their end."""

import json
import os
import subprocess
import sys
import time

import pytest

from qkvflow.experiments.plan import Plan
from qkvflow.experiments.results import read_experiment, save_plan
from qkvflow.experiments.runner import complete
from qkvflow.experiments.workers import cut, sharing_cores, workers
from tests.experiments.support import Counter, tiny_fields

pinned = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no cores can be chosen here")


@pytest.mark.parametrize(("processes", "sizes"), [(1, [5]), (2, [3, 2]), (5, [1] * 5), (9, [1] * 5)])
def test_cores_are_cut_evenly_and_none_is_in_two_shares(processes, sizes):
    shares = cut([3, 4, 5, 8, 9], processes)
    assert [len(share) for share in shares] == sizes
    assert sorted(core for share in shares for core in share) == [3, 4, 5, 8, 9]


@pinned
def test_a_process_keeps_to_its_share_for_as_long_as_others_work():
    cores = os.sched_getaffinity(0)
    with sharing_cores(1) as left:
        assert (left, os.sched_getaffinity(0)) == ([], cores)
    with sharing_cores(len(cores)) as left:
        own = os.sched_getaffinity(0)
        assert len(own) == 1 and own.union(*left) == cores
        assert len(left) == len(cores) - 1
    assert os.sched_getaffinity(0) == cores


@pinned
def test_another_process_works_on_the_experiment_too(text, tmp_path):
    plan = Plan.of(tiny_fields(text, seeds=1))
    save_plan(plan, tmp_path)
    watcher = Counter()
    with workers(plan, tmp_path, [frozenset(os.sched_getaffinity(0))]):
        other = tmp_path / "runs" / "standard" / "seed-0.json"
        for _ in range(600):  # it takes the first run
            if other.is_file():
                break
            time.sleep(0.1)
        complete(plan, tmp_path, watcher)
    assert ("standard", 0) not in watcher.begun
    assert len(read_experiment(tmp_path).records) == 2
    assert json.loads(other.read_text())["status"] == "finished"


STARTS_AND_IS_KILLED = """
import os, sys, time
from pathlib import Path
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.workers import _start
if __name__ == "__main__":
    plan = Plan.of({"base": {}, "arms": {"a": {"model": "standard"}}, "seeds": 1})
    print(_start(plan, Path(sys.argv[1]), frozenset(os.sched_getaffinity(0))).pid, flush=True)
    os._exit(9)
"""


@pinned
def test_a_process_does_not_outlive_the_one_that_started_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STARTS_AND_IS_KILLED)
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "out")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 9, ended.stderr
    begin = time.monotonic()
    while _is_there(int(ended.stdout)) and time.monotonic() - begin < 60:
        time.sleep(0.1)
    assert not _is_there(int(ended.stdout))


def _is_there(process):
    """Whether a process runs; one that has ended may wait for somebody to take note."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
