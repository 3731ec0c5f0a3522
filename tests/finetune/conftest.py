"""Fine-tuning trains: what training needs in tests, it needs, too."""

import pytest

from tests.train.conftest import _ordinary_promotion, _own_cache, text  # noqa: F401
from tests.train.support import trained_base, write_text


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A trained base of two layers, and the text of another kind that it is adapted to."""
    directory = tmp_path_factory.mktemp("base")
    return trained_base(directory), write_text(directory / "other.txt", seed=5)
