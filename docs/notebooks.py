"""The notebooks of docs/notebooks: `python -m docs.notebooks` runs them and keeps what they show.

The cells are plain Python, so that no kernel is needed: they run here in order, in one namespace, and
what a cell prints and what its last line is worth become its outputs, as Jupyter would keep them.
In the metadata of a notebook `quick` has smaller values for some of its names, with which the suite
runs it: where a cell sets such a name, it gets that value.
"""

import ast
import base64
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]
PLACE = Path(__file__).parent / "notebooks"
OWN = "qkvflow"
"""Name of our own metadata."""


def names() -> list[str]:
    """Of all notebooks."""
    return sorted(path.stem for path in PLACE.glob("*.ipynb"))


def read(name: str) -> Notebook:
    """A notebook as its JSON has it."""
    return json.loads((PLACE / f"{name}.ipynb").read_text(encoding="utf-8"))


def quick(notebook: Notebook) -> dict[str, Any]:
    """The values with which the suite runs a notebook, by name."""
    return notebook["metadata"][OWN]["quick"]


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """The cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: Notebook, where: Path, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run all cells in a directory and put their outputs into the notebook; the names they set.

    Args:
        values: what the names that cells set are set to instead.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(where):
        for count, cell in enumerate(code_cells(notebook), start=1):
            cell["execution_count"] = count
            cell["outputs"] = outputs_of("".join(cell["source"]), space, values or {}, count)
    return space


def outputs_of(
    source: str, space: dict[str, Any], values: Mapping[str, Any], count: int
) -> list[dict[str, Any]]:
    """Run a cell; what it printed, and what its last line is worth."""
    cell = ast.parse(source)
    last = cell.body[-1] if cell.body else None
    if isinstance(last, ast.Expr):
        cell.body.pop()
    _replace(cell.body, values)
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(cell, "<cell>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        result = {"execution_count": count, "metadata": {}, "output_type": "execute_result"}
        found.append({"data": shown(value), **result})
    return found


def _replace(body: Sequence[ast.stmt], values: Mapping[str, Any]) -> None:
    """Set names at the top level to other values."""
    for line in body:
        target = line.targets[0] if isinstance(line, ast.Assign) else None
        if isinstance(line, ast.Assign) and isinstance(target, ast.Name) and target.id in values:
            line.value = ast.parse(repr(values[target.id]), mode="eval").body


def shown(value: Any) -> dict[str, Any]:
    """What a notebook shows of a value, by media type: as itself, or else as text."""
    data: dict[str, Any] = {}
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode()
    elif hasattr(value, "_repr_html_"):
        data["text/html"] = [value._repr_html_()]
    return {**data, "text/plain": [f"<{type(value).__name__}>" if data else repr(value)]}


def write(name: str, notebook: Notebook) -> None:
    """Write a notebook in the layout that Jupyter writes."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    (PLACE / f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")


def main(wanted: Sequence[str]) -> None:
    """Run the notebooks that are named, or all."""
    for name in wanted or names():
        notebook = read(name)
        with tempfile.TemporaryDirectory() as directory:
            run(notebook, Path(directory))
        write(name, notebook)
        print(f"Written: {PLACE / name}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
