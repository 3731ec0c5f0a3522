"""What `keep_freed_memory` is for: pages that the operating system supplies anew in every call."""

import os
import subprocess
import sys

import pytest

from qkvflow.memory import keep_freed_memory

PROGRAM = """
import resource, sys
from qkvflow.memory import keep_freed_memory

kept = keep_freed_memory() if "keep" in sys.argv else None
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


def test_what_the_user_set_counts(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not keep_freed_memory()
