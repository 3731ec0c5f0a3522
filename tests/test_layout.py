"""The layout: imports point down and are light; files and functions stay readable, and few."""

import ast
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "qkvflow"
ALTITUDE = [
    "memory",
    "interrupt",
    "files",
    "extras",
    "lock",
    "progress",
    "plugins",
    "provenance",
    "statistics",
    "scaling",
    "config",
    "nn",
    "models",
    "data",
    "compiled",
    "generate",
    "report",
    "train",
    "experiments",
    "analysis",
    "finetune",
    "exchange",
    "harness",
    "levanter",
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


def printed_by(code):
    """What Python code prints in a process of its own, where nothing is imported yet."""
    run = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_imports_point_down():
    upwards = []
    for path in SOURCES:
        own = altitude([p for p in path.relative_to(PACKAGE).parts if not p.startswith("__")])
        for module in imports_of(path):
            if module.startswith("qkvflow.") and altitude(module.split(".")[1:]) > own:
                upwards.append(f"{path.relative_to(ROOT)} imports {module}, which is above")
    assert not upwards, "\n".join(upwards)


def test_only_the_adaptive_integrator_imports_diffrax():
    users = [path.name for path in SOURCES if any(m.startswith("diffrax") for m in imports_of(path))]
    assert users == ["adaptive.py"]


def test_only_the_harness_imports_lm_eval_and_nothing_imports_transformers():
    users = {name: set() for name in ("lm_eval", "torch", "transformers")}
    for path in SOURCES:
        for module in imports_of(path):
            users.get(module.split(".")[0], set()).add(path.relative_to(PACKAGE).parts[0])
    assert users == {"lm_eval": {"harness"}, "torch": set(), "transformers": set()}
    code = "import sys, qkvflow.cli.evaluate; print('lm_eval' in sys.modules)"
    assert printed_by(code) == "False"


def test_statistics_need_no_jax():
    code = (
        "import sys, qkvflow.statistics, qkvflow.scaling;"
        "print([m for m in ('jax', 'equinox', 'matplotlib') if m in sys.modules])"
    )
    assert printed_by(code) == "[]"


def test_building_a_model_imports_no_slow_library():
    code = (
        "import sys, qkvflow.models, qkvflow.generate;"
        "print([m for m in ('matplotlib', 'diffrax', 'tokenizers') if m in sys.modules])"
    )
    assert printed_by(code) == "[]"


def test_data_imports_no_jax():
    for path in (PACKAGE / "data").glob("*.py"):
        outside = {m.split(".")[0] for m in imports_of(path)}
        assert not outside & {"jax", "haliax", "equinox"}, path


def test_data_imports_nothing_heavy():
    heavy = ["jax", "jaxlib", "scipy", "tokenizers", "datasets", "rich", "matplotlib"]
    code = f"import sys, qkvflow.data; print([m for m in {heavy} if m in sys.modules])"
    assert printed_by(code) == "[]"


def test_reading_a_config_does_not_import_jax():
    code = "import sys, qkvflow.config as c; c.Gpt2Config(); print('jax' in sys.modules)"
    assert printed_by(code) == "False"


def functions_of(path):
    """The functions of a file, methods and inner ones too."""
    tree = ast.walk(ast.parse(path.read_text()))
    return [node for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def length(function):
    return function.end_lineno - function.lineno + 1


def test_files_and_functions_stay_readable():
    long = [path for path in SOURCES if path.read_text().count("\n") > 500]
    assert not long, f"more than 500 lines: {long}"
    functions = [(path, function) for path in SOURCES for function in functions_of(path)]
    long = [f"{path}:{f.lineno} {f.name}" for path, f in functions if length(f) > 60]
    assert not long, f"more than 60 lines: {long}"
    median = statistics.median(length(function) for _, function in functions)
    assert median < 12, f"half of the functions have {median} lines or more"


def test_the_repository_stays_small():
    try:
        listed = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git does not know this folder: its files are not counted")
    files = listed.splitlines()
    results = Counter(name.split("/")[1] for name in files if name.startswith("results/"))
    many = [name for name, count in results.items() if count > 9]
    assert not many, f"more than a handful of files: {many}; `qkvflow experiment pack` them"
    assert results.total() <= 160, f"{results.total()} files of results: remove what no page shows"
    assert len(files) <= 640, f"{len(files)} files: merge or remove some"
