"""How much memory there is, and pages that the operating system would supply anew in every call."""

import os
import subprocess
import sys

import pytest

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
