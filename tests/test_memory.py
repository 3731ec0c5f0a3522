"""What a command keeps for itself: freed memory, and compiled programs, which do not grow for ever."""

import os
import subprocess
import sys

import pytest

from qkvflow import compiled
from qkvflow.compiled import directory_of_programs, make_room
from qkvflow.memory import keep_freed_memory, memory_limit

PROGRAM = """
import resource, sys
from qkvflow.cli import main
from qkvflow.memory import keep_freed_memory

def count(*_):
    import jax, jax.numpy as jnp

    x = jnp.ones((1024, 1024))
    history = lambda x: jax.lax.scan(lambda x, _: (x * 1.01, x), x, length=40)[1]  # 160 MB
    lots = jax.jit(lambda x: history(x).sum())
    faults = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        lots(x).block_until_ready()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(kept, min(faults))
    return 0

kept = keep_freed_memory() if "keep" in sys.argv else None
if "train" in sys.argv:
    main._run = count  # all that a command does before it begins, then the count
    main.main()
else:
    count()
"""


def pages_per_call(*arguments):
    """What `keep_freed_memory` said, and how many pages a call needed once it was warm."""
    run = [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=clean)
    kept, pages = done.stdout.split()
    return kept, int(pages)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_memory_that_is_kept_is_not_supplied_again():
    ordinary, kept = pages_per_call(), pages_per_call("keep")
    assert kept[0] == "True"
    assert ordinary[1] > 10 * max(kept[1], 100)
    _, of_a_command = pages_per_call("train")
    assert ordinary[1] > 10 * max(of_a_command, 100), "a thread that is there before keeps its own heap"


def test_what_the_user_set_counts(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not keep_freed_memory()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="unknown elsewhere")
@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {}, None),
        ("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": "4096"}, 4096),
        ("0::/job\n", {"job/memory.max": "4096", "memory.max": "1024"}, 1024),
        ("4:cpu,memory:/job\n3:pids:/\n", {"memory/job/memory.limit_in_bytes": "2048\n"}, 2048),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_memory_of_a_container_counts(groups, files, limit, tmp_path):
    own = tmp_path / "proc" / "self" / "cgroup"
    own.parent.mkdir(parents=True)
    own.write_text(groups)
    for name, content in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_limit(tmp_path) == (physical if limit is None else limit)


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
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", STEP, str(text)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "Warning" not in ended.stderr, ended.stderr
    seconds, hits = ended.stdout.split()
    return float(seconds), int(hits)


def test_a_second_start_of_the_same_run_finds_its_programs(tmp_path):
    (tmp_path / "text.txt").write_text("A weight is a curve over depth.\n" * 50)
    starts = (compiled_in_a_process(tmp_path / "text.txt", tmp_path / "cache") for _ in range(2))
    (first, none), (second, hits) = starts
    assert none == 0 and hits >= 1
    assert second < first / 2, (first, second)
    for path in (tmp_path / "cache" / "compiled").rglob("*-cache"):
        path.write_bytes(path.read_bytes()[:10])  # another process is still writing it
    assert compiled_in_a_process(tmp_path / "text.txt", tmp_path / "cache")[1] == 0


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
