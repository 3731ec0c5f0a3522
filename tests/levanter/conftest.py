"""Tests of Levanter on our models; they need an environment of their own (make levanter-test)."""

from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

collect_ignore_glob = [] if find_spec("levanter") else ["test_*.py"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.levanter)


@pytest.fixture(autouse=True)
def _as_levanter_has_it():
    """Levanter mixes types and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
