"""The package as a whole: what it imports, and the examples in its docstrings."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import qkvflow.data

MODULES = [f"qkvflow.data.{module.name}" for module in pkgutil.iter_modules(qkvflow.data.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_importing_it_imports_nothing_heavy():
    heavy = ["jax", "jaxlib", "scipy", "tokenizers", "datasets", "rich", "matplotlib"]
    code = f"import sys, qkvflow.data; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_no_file_names_jax():
    for path in Path(qkvflow.data.__path__[0]).glob("*.py"):
        assert "import jax" not in path.read_text(encoding="utf-8"), path
