"""Experiments train: what training needs in tests, they need, too."""

from tests.train.conftest import (  # noqa: F401
    _compiled_programs,
    _ordinary_promotion,
    _own_cache,
    text,
)
