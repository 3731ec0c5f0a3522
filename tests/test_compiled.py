"""Compiled programs that are kept: a second start compiles in no time, and nothing grows for ever."""

import os
import subprocess
import sys

from qkvflow import compiled
from qkvflow.compiled import directory_of_programs, make_room

STEP = """
import sys
import jax
from qkvflow.compiled import keep_compiled
from qkvflow.config import RunConfig, read_recipe
from qkvflow.config.yaml_files import merged
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
keep_compiled()
own = {"data": sys.argv[1], "batch_size": 2, "length": 16}
own["architecture"] = {"hidden_dim": 32, "num_heads": 2, "num_layers": 3}
run = RunConfig.from_dict(merged(read_recipe(), own))
seconds, hits = [], []
def took(event, duration, **_):
    if event.endswith("backend_compile_duration"):
        seconds.append(duration)
def found(event, **_):
    if event.endswith("compilation_cache/cache_hits"):
        hits.append(event)
jax.monitoring.register_event_duration_secs_listener(took)
jax.monitoring.register_event_listener(found)
Program(run, open_data(run)).memory_bytes
print(sum(seconds), len(hits))
"""


def compiled_in_a_process(text, cache):
    """Seconds that making and compiling a step take, and programs that were there before."""
    environment = {**os.environ, "QKVFLOW_CACHE": str(cache)}
    del environment["JAX_COMPILATION_CACHE_DIR"]
    command = [sys.executable, "-W", "ignore", "-c", STEP, str(text)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    seconds, hits = ended.stdout.split()
    return float(seconds), int(hits)


def test_a_second_start_of_the_same_run_finds_its_programs(tmp_path):
    (tmp_path / "text.txt").write_text("A weight is a curve over depth.\n" * 50)
    starts = (compiled_in_a_process(tmp_path / "text.txt", tmp_path / "cache") for _ in range(2))
    (first, none), (second, hits) = starts
    assert none == 0 and hits >= 1
    assert second < first / 2, (first, second)


def test_another_machine_or_version_has_a_directory_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path))
    own = directory_of_programs()
    assert own.parent == tmp_path / "compiled" and directory_of_programs() == own
    monkeypatch.setattr(compiled, "cpu_flags", lambda _: {"sse"})
    other = directory_of_programs()
    monkeypatch.setattr(compiled.jaxlib, "__version__", "0.0")
    assert len({own, other, directory_of_programs()}) == 3


def test_the_oldest_programs_go_when_there_are_too_many(tmp_path):
    for i in range(6):
        (tmp_path / f"{i}").write_bytes(bytes(10))
        os.utime(tmp_path / f"{i}", (0, 100 - i))
    make_room(tmp_path, largest=60)
    assert len([*tmp_path.iterdir()]) == 6
    make_room(tmp_path, largest=59)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
    make_room(tmp_path / "none")
