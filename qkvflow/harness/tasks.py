"""Tasks of lm-evaluation-harness on a model: by their names, or from a folder of YAML files."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkvflow.config import ConfigError, nearest
from qkvflow.data import DataError
from qkvflow.extras import pip_line
from qkvflow.report.table import Table

RESAMPLES = 1000
"""Of the bootstrap, from which the harness takes standard errors that have no formula."""


def run_tasks(
    checkpoint: str | os.PathLike[str],
    names: Sequence[str],
    *,
    shots: int | None = None,
    folder: Path | None = None,
    limit: int | None = None,
    **settings: Any,
) -> dict[str, dict[str, Any]]:
    """The results of every task, and group of tasks, by its name, as the harness gives them.

    Args:
        shots: examples before each question; None: as the task has it.
        folder: where YAML files describe further tasks.
        limit: examples of each task; None: all.
        settings: of `QkvflowLM`, such as depth and batch_size.

    Raises:
        ConfigError: the harness is not installed, or there is no such task.
        DataError: the data of a task cannot be read.

    Examples:
        run_tasks("runs/first", ["lambada_openai"], depth=8)["lambada_openai"]["acc,none"]
    """
    try:
        from lm_eval import simple_evaluate
    except ImportError as error:
        problem = f"lm-evaluation-harness is not installed. Run {pip_line('lm-eval')}."
        raise ConfigError("The tasks cannot be run:", [problem]) from error
    from qkvflow.harness.model import QkvflowLM

    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # its bootstrap would fork the threads of JAX
    for talker in ("lm_eval", "huggingface_hub"):  # they say what goes well, and every attempt
        logging.getLogger(talker).setLevel(logging.ERROR)
    manager = task_manager(names, folder)
    tasks = load_tasks(manager, names)
    model = QkvflowLM(os.fspath(checkpoint), **settings)
    found: Any = simple_evaluate(
        model=model,
        tasks=tasks,
        task_manager=manager,
        num_fewshot=shots,
        limit=limit,
        log_samples=False,
        bootstrap_iters=RESAMPLES,
    )
    return {**found["results"], **found.get("groups", {})}


def task_manager(names: Sequence[str], folder: Path | None = None) -> Any:
    """What knows the tasks: those of the folder alone if they are all there, since that is faster.

    Raises:
        ConfigError: there is no such folder.
    """
    from lm_eval.tasks import TaskManager

    if folder is not None and not folder.is_dir():
        raise ConfigError("The tasks cannot be run:", [f"{folder} is no directory with YAML files."])
    if folder is not None:
        own = TaskManager(include_path=str(folder), include_defaults=False)
        if {*names} <= {*own.all_subtasks}:
            return own
    return TaskManager(include_path=None if folder is None else str(folder))


def load_tasks(manager: Any, names: Sequence[str]) -> list[Any]:
    """The tasks of these names, or groups of tasks, with their data.

    Raises:
        ConfigError: there is no such task.
        DataError: the data of a task cannot be read.
    """
    known = manager.all_tasks
    missing = [name for name in names if name not in known]
    problems = [f"there is no task {name!r}. {_hint(name, known)}" for name in missing]
    if problems:
        raise ConfigError("The tasks cannot be run:", problems)
    return [task for name in names for task in _loaded(manager, name)]


def _hint(name: str, known: Sequence[str]) -> str:
    """The task that was probably meant; a list of all of them would be thousands of names long."""
    hint, separator, _ = nearest(name, known).partition("? ")
    close = f"{hint}? " if separator else ""
    return f"{close}The command lm_eval ls tasks lists all; --task-folder names a directory of others."


def _loaded(manager: Any, name: str) -> list[Any]:
    """A task or a group of tasks with their data."""
    try:
        found = manager.load([name])
    except Exception as error:  # datasets lets through the errors of half a dozen libraries
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(
            f"The data of the task {name} cannot be read: {reason.rstrip('.')}. Check the network and "
            "whether the hub can be reached, or name a task whose data are local files."
        ) from error
    group = found["groups"].get(name)
    return [group] if group is not None else list(found["tasks"].values())


def results_table(results: dict[str, dict[str, Any]], title: str) -> Table:
    """A row for every metric of every task."""
    rows = [
        (task, metric.replace(",none", ""), _number(value), _number(metrics.get(_error_of(metric))))
        for task, metrics in results.items()
        for metric, value in metrics.items()
        if isinstance(value, int | float) and "," in metric and "_stderr" not in metric
    ]
    return Table(("task", "metric", "value", "standard error"), tuple(rows), title)


def _error_of(metric: str) -> str:
    name, _, filtered = metric.partition(",")
    return f"{name}_stderr,{filtered}"


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else ""
