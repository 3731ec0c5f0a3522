"""The layout: imports point down, `import qkvflow` is light, files and functions stay readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "qkvflow"
ALTITUDE = [
    "memory",
    "interrupt",
    "files",
    "lock",
    "progress",
    "plugins",
    "provenance",
    "statistics",
    "config",
    "nn",
    "models",
    "data",
    "compiled",
    "train",
    "generate",
    "report",
    "experiments",
    "analysis",
    "finetune",
    "cli",
]
SOURCES = sorted(PACKAGE.rglob("*.py"))


def imports_of(path):
    """Modules that a file imports, at its head or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def altitude(parts):
    """The package's own files, such as __init__.py, stand above all folders."""
    return ALTITUDE.index(parts[0].removesuffix(".py")) if parts else len(ALTITUDE)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    own = altitude([p for p in path.relative_to(PACKAGE).parts if not p.startswith("__")])
    for module in imports_of(path):
        if module.startswith("qkvflow."):
            assert altitude(module.split(".")[1:]) <= own, f"{path} imports {module}, which is above"


def test_only_the_adaptive_integrator_imports_diffrax():
    users = [path.name for path in SOURCES if any(m.startswith("diffrax") for m in imports_of(path))]
    assert users == ["adaptive.py"]


def test_statistics_need_no_jax():
    code = (
        "import sys, qkvflow.statistics;"
        "print([m for m in ('jax', 'equinox', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_building_a_model_imports_no_slow_library():
    code = (
        "import sys, qkvflow.models, qkvflow.generate;"
        "print([m for m in ('matplotlib', 'diffrax', 'tokenizers') if m in sys.modules])"
    )
    run = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_data_imports_no_jax():
    for path in (PACKAGE / "data").glob("*.py"):
        outside = {m.split(".")[0] for m in imports_of(path)}
        assert not outside & {"jax", "haliax", "equinox"}, path


def test_reading_a_config_does_not_import_jax():
    code = "import sys, qkvflow.config as c; c.Gpt2Config(); print('jax' in sys.modules)"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == "False"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_readable(path):
    text = path.read_text()
    assert text.count("\n") <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"
