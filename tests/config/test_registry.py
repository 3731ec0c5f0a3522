"""Registries: names in order, each once, and a sentence about one that is not there."""

import pytest

from qkvflow.config import ConfigError
from qkvflow.config.registry import Registry


@pytest.fixture
def shapes():
    shapes = Registry("shape")
    shapes.register("square")(4)
    shapes.register("circle")(0)
    return shapes


def test_it_is_a_mapping_in_the_order_of_registration(shapes):
    assert dict(shapes) == {"square": 4, "circle": 0}
    assert shapes.get("square") == 4
    assert shapes.get("line", "none") == "none"
    assert "line" not in shapes


def test_a_name_that_is_not_there_is_a_sentence(shapes):
    with pytest.raises(ConfigError) as error:
        shapes["circl"]
    words = (
        "The shape is not known:\n  - there is no shape 'circl'. Did you mean 'circle'? Known: circle,"
    )
    assert str(error.value).startswith(words)
    assert "--plugin FILE" in str(error.value)


def test_a_name_is_taken_once(shapes):
    with pytest.raises(ConfigError, match="there is a shape 'circle' already"):
        shapes.register("circle")(1)
    assert shapes["circle"] == 0


def test_the_package_s_own_are_imported_when_they_are_asked_for(tmp_path, monkeypatch):
    lines = ["from registry_of_test import LAZY", "LAZY.register('own')(1)"]
    (tmp_path / "variants_of_test.py").write_text("\n".join(lines))
    (tmp_path / "registry_of_test.py").write_text(
        "from qkvflow.config.registry import Registry\nLAZY = Registry('thing', 'variants_of_test')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import sys

    from registry_of_test import LAZY

    assert "variants_of_test" not in sys.modules
    LAZY.register("other")(2)
    assert dict(LAZY) == {"own": 1, "other": 2}
