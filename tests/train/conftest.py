"""Training promotes types inside optax; a run's data is kept apart from the user's cache.

Many tests train the same small model: what one has compiled, the next one finds, in a process of its
own, too.
"""

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from tests.train.support import write_text


@pytest.fixture(autouse=True)
def _ordinary_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _compiled_programs(tmp_path_factory, monkeypatch):
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.getbasetemp() / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        monkeypatch.setenv(name.upper(), str(value))
        jax.config.update(name, value)
    reset_cache()  # JAX looks at these options once and remembers
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


@pytest.fixture
def text(tmp_path):
    """A little text with something to learn in it."""
    return write_text(tmp_path / "text.txt")
