"""Training promotes types inside optax; a run's data is kept apart from the user's cache."""

import jax
import pytest

from tests.train.support import write_text


@pytest.fixture(autouse=True)
def _ordinary_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path):
    """A little text with something to learn in it."""
    return write_text(tmp_path / "text.txt")
