"""Experiments train: what training needs in tests, they need, too."""

import pytest

from qkvflow.experiments.plan import Plan
from tests.experiments.support import run_all, tiny_fields
from tests.train.conftest import (  # noqa: F401
    _ordinary_promotion,
    _own_cache,
    text,
)


@pytest.fixture
def done(request, tmp_path):
    """A finished experiment with the test split opened."""
    plan = Plan.of(tiny_fields(request.getfixturevalue("text"), test=True))
    begun = run_all(plan, tmp_path / "out")
    assert len(begun) == 4
    return plan, tmp_path / "out"
