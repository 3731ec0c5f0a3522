"""Strict JAX: no silent promotion of ranks or types, in any test.

Most of the suite's time is compilation. XLA's lowest level of optimisation, its older code generator
for fusions and one module of code a program shorten it sevenfold. XLA refuses flags that it does not
know: should a later one drop any of these, remove it here. What one test has compiled, the next one
finds on disk, in a process of its own, too, and in the next run of the suite.
"""

import gc
import os
from pathlib import Path

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest
from hypothesis import settings

from qkvflow.generate import drafts

gc.disable()  # tracing makes so many objects that looking for cycles takes a tenth of the time
settings.register_profile("suite", max_examples=20, deadline=None)
settings.register_profile("fuzz", max_examples=700, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

TESTS = Path(__file__).parent
LONG = (
    *(
        "analysis",
        "benchmarks",
        "exchange",
        "finetune",
        "harness",
        "plugins",
        "unchanged",
        "test_documents.py",
        "test_drafts.py",
        "test_early.py",
        "test_notebooks.py",
        "test_streaming.py",
    ),
    *(f"cli/test_{of}.py" for of in ("analyze", "cli", "experiments", "finetuning_commands")),
    "cli/test_training_commands.py",
    *(f"experiments/test_{of}.py" for of in ("pack", "present", "reuse", "run_page", "runner")),
    *(f"experiments/test_{of}.py" for of in ("plan", "starts")),
    *(f"models/test_{of}.py" for of in ("adapted", "causality", "looped", "mixed", "segments")),
    *(f"models/test_{of}.py" for of in ("streams", "training", "unroll")),
    *(f"train/test_{of}.py" for of in ("checkpoints", "depths", "learning", "loop")),
    *(f"train/test_{of}.py" for of in ("outcome", "parallel", "start", "step")),
)
"""Tests that train, run commands, open browsers or compile much: `make quick` leaves them out."""
MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 10_000
"""Of memory, in a process, before compiled programs are forgotten: Linux allows 65,530."""
TESTS_BETWEEN_CLEARING = 20
"""Where mappings cannot be counted."""
CAN_PIN = hasattr(os, "sched_setaffinity")  # not on macOS
CORES = sorted(os.sched_getaffinity(0)) if CAN_PIN else []
_finished = 0


def pytest_configure():
    """Share out the cores among the workers: threads of one would wait for those of another."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and CAN_PIN:
        first = int(worker.removeprefix("gw")) % len(CORES)
        os.sched_setaffinity(0, CORES[first :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])])


def pytest_collection_modifyitems(items):
    """Mark what takes long by where it is."""
    for item in items:
        if item.path.is_relative_to(TESTS) and _is_long(item.path.relative_to(TESTS).as_posix()):
            item.add_marker(pytest.mark.long)


def _is_long(name):
    return name.startswith(tuple(f"{place}/" for place in LONG)) or name in LONG


@pytest.fixture
def drafts_are_cheap(monkeypatch):
    """They cost their operations and nothing else, and are never given up."""
    monkeypatch.setattr(drafts, "COSTS", drafts.Costs(0.0, 0.0, 0.0))
    monkeypatch.setattr(drafts, "PATIENCE", 1000.0)


@pytest.fixture
def all_cores():
    """For tests that catch another process at a moment: they cannot from the core that it is on."""
    if not CAN_PIN:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, own)


def pytest_sessionfinish():
    """The end of the process need not look for cycles, either."""
    gc.freeze()


@pytest.hookimpl(trylast=True)  # when what a test had changed is as it was
def pytest_runtest_teardown():
    """Forget compiled programs where they become too many: every one holds several memory mappings."""
    global _finished
    _finished += 1
    if _has_too_many_programs():
        jax.clear_caches()
        gc.collect()


def _has_too_many_programs():
    if not MAPPINGS.is_file():
        return _finished % TESTS_BETWEEN_CLEARING == 0
    return MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS
