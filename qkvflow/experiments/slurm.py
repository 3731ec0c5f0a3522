"""The same runs on a cluster: processes that share an experiment, submitted through submitit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkvflow import plugins
from qkvflow.config import ConfigError
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.runner import complete
from qkvflow.extras import pip_line


def submit(
    plan: Plan,
    out: Path,
    workers: int,
    parameters: dict[str, Any],
    cluster: str | None = None,
    reuse: Sequence[Path] = (),
) -> list[Any]:
    """Submit workers that finish the experiment together; returns submitit's jobs.

    `parameters` are submitit's, such as timeout_min or slurm_partition. After a time limit, submit
    again: every run goes on where it stopped.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(
            "The runs cannot be submitted:",
            [f"submitit is not installed. Run {pip_line('slurm')}."],
        ) from error
    executor = submitit.AutoExecutor(folder=out / "slurm", cluster=cluster)
    try:
        executor.update_parameters(**parameters)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError("The runs cannot be submitted:", [f"submitit says: {error}"]) from error
    work = (plugins.files(), dict(plan.fields), out, reuse)
    return [executor.submit(_work, *work) for _ in range(workers)]


def _work(files: Sequence[Path], fields: dict[str, Any], out: Path, reuse: Sequence[Path]) -> Any:
    """What a worker does: the plan comes as plain tables, which may need plugins to be understood."""
    plugins.load_installed()
    plugins.load_plugins(files)
    return complete(Plan.of(fields).checked(), out, None, reuse)
