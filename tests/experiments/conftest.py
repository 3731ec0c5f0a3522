"""Experiments train: what training needs in tests, they need, too. One is trained for all tests."""

import shutil

import jax
import pytest

from qkvflow.experiments.plan import Plan
from tests.experiments.support import run_all, tiny_fields
from tests.train.conftest import _ordinary_promotion, _own_cache  # noqa: F401
from tests.train.support import write_text


@pytest.fixture(scope="session")
def _trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    plan = Plan.of(tiny_fields(write_text(directory / "text.txt"), test=True, depths=[1, 2]))
    ordinary = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with pytest.MonkeyPatch.context() as patch, ordinary[0], ordinary[1]:
        patch.setenv("QKVFLOW_CACHE", str(directory / "cache"))
        assert len(run_all(plan, directory / "out")) == 4
    return plan, directory


@pytest.fixture
def text(_trained):
    """A little text with something to learn in it; a test may change it."""
    yield _trained[1] / "text.txt"
    write_text(_trained[1] / "text.txt")


@pytest.fixture
def done(_trained, tmp_path):
    """A finished experiment with the test split opened."""
    plan, directory = _trained
    return plan, shutil.copytree(directory / "out", tmp_path / "out", symlinks=True)
