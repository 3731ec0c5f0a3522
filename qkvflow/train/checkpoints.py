"""Checkpoints: a model as `save` writes it, and beside it what training needs to go on.

    DIR/checkpoints/step-00000250/
        model.safetensors  config.json  tokenizer.json   in seed-0/, seed-1/ ... with several seeds;
                                                         where weights are averaged, the average
        optimizer.safetensors                            the rest of the state, by path
        training.json                                    step, run, data, sha256 of the other files
    DIR/checkpoints/best                                 a link to the one with the lowest valid loss

A checkpoint is written beside its place and renamed into it, so it is there whole or not at all; and
it is read only if every file has the sha256 that `training.json` says. A thread writes a copy of the
state while training goes on. safetensors rather than orbax: benchmarks/checkpoints.py has the reasons
in numbers.
"""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qkvflow import __version__, plugins
from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.history import moved_run
from qkvflow.config.strict import read_typed, type_problems
from qkvflow.data import Tokenizer
from qkvflow.files import (
    FileError,
    building,
    check_digests,
    file_sha256,
    point_link,
    remove_abandoned,
    set_aside,
    write_sealed,
)
from qkvflow.models import LanguageModel
from qkvflow.models.paths import Arrays
from qkvflow.models.storage import (
    ARRAYS,
    check_finite,
    check_shapes,
    known_plugins,
    read_arrays,
    write_arrays,
)
from qkvflow.nn.parameters import by_path
from qkvflow.train.run_files import checkpoint_paths, model_directories, write_models
from qkvflow.train.step import State

FORMAT = 2
OPTIMIZER, RECORD, BEST = "optimizer.safetensors", "training.json", "best"
_TYPES: dict[str, Any] = {"run": dict[str, Any], "data_digest": str, "progress": dict[str, Any]}
_TYPES |= {"files": dict[str, str]}


@dataclass(frozen=True)
class Best:
    """The lowest valid loss so far, and the step after which it was seen."""

    loss: float
    step: int


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside its arrays."""

    step: int
    seconds: float
    best: Best | None


def on_host(state: State) -> State:
    """A copy in the host's memory, which the next step cannot overwrite."""
    return jax.tree.map(lambda array: np.array(array, copy=True), state)


def _beside_model(state: State) -> State:
    """What of a state is not written as the model: of averaged weights, the weights themselves."""
    own = {name: state.parameters[name] for name in state.average}
    return state._replace(parameters=own, average={})


class CheckpointStore:
    """The checkpoints of a run. A write that fails is kept as a sentence; training goes on."""

    def __init__(
        self, out: Path, run: RunConfig, model: LanguageModel, tokenizer: Tokenizer, data_digest: str
    ):
        self.directory = (out / "checkpoints").resolve()
        self._run = run
        self._model = model
        self._tokenizer = tokenizer
        self._data_digest = data_digest
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._where = ""

    def save(self, state: State, progress: Progress) -> str | None:
        """Copy the state and write it; returns what was wrong with the write before, if anything.

        A write that is still going on is waited for, so that at most one copy is held.
        """
        problem = self.wait()
        self._where = f"the checkpoint after step {progress.step}"
        self._pending = self._thread.submit(self.write, on_host(state), progress)
        return problem

    def wait(self) -> str | None:
        """Wait for the write that is going on; returns what was wrong with it, if anything."""
        pending, self._pending = self._pending, None
        error = None if pending is None else pending.exception()
        if error is None:
            return None
        if not isinstance(error, OSError):
            raise error
        return (
            f"{self._where} could not be written: {error.strerror or error}. Earlier ones are "
            f"whole. Free some space on the disk of {self.directory}."
        )

    def close(self) -> None:
        """End the thread, after the write that is going on."""
        self._thread.shutdown()

    def write(self, state: State, progress: Progress) -> None:
        """Write a checkpoint of a state on the host, then forget those that are not kept."""
        target = self._path(progress.step)
        if not target.exists():
            with building(target) as directory:
                self._write_files(directory, state, progress)
        best = self._path(progress.best.step) if progress.best else None
        if best and best.is_dir() and best != (self.directory / BEST).resolve():
            point_link(self.directory / BEST, best.name)
        kept = {(self.directory / BEST).resolve(), *checkpoint_paths(self.directory)[: self._run.keep]}
        for path in checkpoint_paths(self.directory):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _write_files(self, directory: Path, state: State, progress: Progress) -> None:
        write_models(directory, self._run, self._model, self._tokenizer, state.shown)
        write_arrays(directory / OPTIMIZER, by_path(_beside_model(state))[0])
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        content = {
            "version": __version__,
            "run": self._run.to_dict(),
            "seeds": list(self._run.all_seeds),
            "data_digest": self._data_digest,
            "tokenizer_digest": self._tokenizer.digest,
            "plugins": plugins.digests(),
            "progress": asdict(progress),
            "files": {str(path.relative_to(directory)): file_sha256(path) for path in files},
        }
        write_record(directory, content)

    def read(self, path: Path, record: dict[str, Any], like: State) -> tuple[Progress, State]:
        """Where a run stood and its state, which has the shapes of `like`.

        Args:
            record: of the checkpoint, as `newest_good` found it.

        Raises:
            FileError: a file has changed meanwhile, or is of another model.
        """
        shown = self._read_parameters(path, record["files"])
        check_shapes(shown, like.parameters, str(path))
        rest = read_arrays(path / OPTIMIZER, record["files"][OPTIMIZER])
        expected, structure = by_path(_beside_model(like))
        check_shapes(rest, expected, str(path))
        state = jax.tree.unflatten(structure, [rest[name] for name in expected])
        average = {name: shown[name] for name in like.average}
        parameters = shown | state.parameters
        check_finite(parameters, str(path))
        return progress_of(record["progress"]), state._replace(parameters=parameters, average=average)

    def _read_parameters(self, path: Path, files: dict[str, str]) -> Arrays:
        each = [
            read_arrays(directory / ARRAYS, files[str((directory / ARRAYS).relative_to(path))])
            for directory in model_directories(path, self._run)
        ]
        if self._run.seeds == 1:
            return each[0]
        return {name: np.stack([arrays[name] for arrays in each]) for name in each[0]}


def write_record(directory: Path, content: dict[str, Any]) -> None:
    """Write what a checkpoint says of itself."""
    content = {name: value for name, value in content.items() if name not in ("kind", "format")}
    write_sealed(directory / RECORD, "checkpoint", FORMAT, content)


def read_record(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: run, progress, digests of its files."""
    content = read_typed(path / RECORD, "checkpoint", FORMAT, _TYPES)
    try:
        progress_of(content["progress"])
    except (KeyError, TypeError) as error:
        raise FileError(f"{path / RECORD} does not say where the run stood: {error}.") from error
    _check_whole(path, content)
    return {**content, "plugins": known_plugins(content, path / RECORD)}


def _check_whole(path: Path, record: dict[str, Any]) -> None:
    """Refuse a record that names no arrays of its models, or a step that its run does not have."""
    try:
        run = RunConfig.from_dict(moved_run(record["run"]))
    except ConfigError:  # who goes on with it says so: it may lack a plugin
        return
    arrays = [place / ARRAYS for place in model_directories(path, run)]
    for file in (OPTIMIZER, *(str(place.relative_to(path)) for place in arrays)):
        if file not in record["files"]:
            raise FileError(f"{path / RECORD} names no {file}: it is not whole.")
    step = record["progress"]["step"]
    if not 0 <= step <= run.steps:
        raise FileError(f"{path / RECORD} is of step {step}, and its run has {run.steps} steps.")


def progress_of(table: dict[str, Any]) -> Progress:
    """Where a run stood, from plain values.

    Raises:
        KeyError, TypeError: they lack something, or are of other types.
    """
    best = None if table["best"] is None else Best(**table["best"])
    found = Progress(table["step"], table["seconds"], best)
    for config in (found, *([best] if best else [])):
        if problems := type_problems(config):
            raise TypeError(" ".join(problems))
    return found


def check_checkpoint(path: Path) -> dict[str, Any]:
    """The record of a checkpoint, all of whose files are as they were written."""
    content = read_record(path)
    check_digests(path, content["files"])
    return content


def best_checkpoint(out: Path) -> tuple[Path, int] | None:
    """The checkpoint of the best evaluation of the run in `out`, and its step, if it is whole."""
    best = out / "checkpoints" / BEST
    if not best.is_dir():
        return None
    path = best.resolve()
    try:
        return path, progress_of(check_checkpoint(path)["progress"]).step
    except FileError:
        return None


def newest_good(directory: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """The newest checkpoint that is as it was written, its record, and what is wrong with newer ones.

    Those are set aside under the name bad-step-..., so that they are not in the way. Leftovers of a
    killed process are removed.

    Raises:
        FileError: there are checkpoints, and none is good.
    """
    remove_abandoned(directory)
    bad: dict[Path, str] = {}
    for path in checkpoint_paths(directory):
        try:
            content = check_checkpoint(path)
        except FileError as error:
            bad[path] = str(error)
            continue
        for other in bad:
            _unlink_best(other)
            set_aside(other)
        return path, content, list(bad.values())
    if bad:
        raise FileError(
            f"No checkpoint in {directory} can be used: {' '.join(bad.values())} Remove the directory "
            "to begin again."
        )
    return None, {}, []


def _unlink_best(path: Path) -> None:
    """Remove the link to the best checkpoint if it leads here."""
    best = path.with_name(BEST)
    if best.is_symlink() and best.resolve() == path.resolve():
        best.unlink()
