"""The notebooks run, smaller; what they keep is what they show, and is not large."""

import base64
import json
import re

import jax
import pytest

from docs import notebooks
from qkvflow.config.variants import FAMILIES

NAMES = ("any_depth", "weights_are_curves", "your_own_idea")
LARGEST = 400_000
"""Bytes of a notebook with its pictures."""


def test_all_notebooks_are_looked_at():
    assert notebooks.names() == list(NAMES)


@pytest.mark.documents
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    """With the smaller values that it names."""
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(FAMILIES, "_entries", dict(FAMILIES))  # that of the idea goes again
    notebook = notebooks.read(name)
    values = notebooks.quick(notebook)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = notebooks.run(notebook, tmp_path, values)
    assert all(found[name] == value for name, value in values.items())


@pytest.mark.parametrize("name", NAMES)
def test_what_a_notebook_keeps_is_whole_and_small(name):
    path = notebooks.PLACE / f"{name}.ipynb"
    cells = notebooks.code_cells(notebooks.read(name))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    assert path.stat().st_size < LARGEST, path.stat().st_size
    shown = json.dumps([cell["outputs"] for cell in cells])
    assert not re.search(r"/(tmp|home|work|Users)/", shown), "a place of the machine that it ran on"


def test_a_cell_shows_what_it_prints_and_what_its_last_line_is_worth():
    class Square:
        def _repr_png_(self):
            return b"png"

    space = {"square": Square()}
    printed, worth = notebooks.outputs_of("N = 4\nprint(N)\nN + 1", space, {"N": 2}, 7)
    assert printed["text"] == ["2\n"] and worth["data"] == {"text/plain": ["3"]}
    assert worth["execution_count"] == 7
    (picture,) = notebooks.outputs_of("square", space, {}, 8)
    assert picture["data"]["image/png"] == base64.b64encode(b"png").decode()
    assert notebooks.outputs_of("M = 3", space, {}, 9) == [] and space["M"] == 3
