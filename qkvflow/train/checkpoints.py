"""Checkpoints: a model as `save` writes it, and beside it what training needs to go on.

    DIR/checkpoints/step-00000250/
        model.safetensors  config.json  tokenizer.json   in seed-0/, seed-1/ ... with several seeds
        optimizer.safetensors                            the rest of the state, by path
        training.json                                    step, run, data, sha256 of the other files

A checkpoint is written beside its place and renamed into it, so it is there whole or not at all; and
it is read only if every file has the sha256 that `training.json` says. safetensors rather than
orbax: benchmarks/checkpoints.py has the reasons in numbers.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qkvflow import __version__
from qkvflow.config import RunConfig
from qkvflow.data import Tokenizer, tokenizer_from_dict
from qkvflow.files import FileError, building, file_sha256, read_sealed, remove_abandoned, write_sealed
from qkvflow.models import LanguageModel
from qkvflow.models.paths import Arrays
from qkvflow.models.storage import (
    ARRAYS,
    check_shapes,
    find_models,
    read_arrays,
    write_arrays,
    write_model,
)
from qkvflow.train.step import State

FORMAT = 1
OPTIMIZER, RECORD, TOKENIZER = "optimizer.safetensors", "training.json", "tokenizer.json"


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


class CheckpointStore:
    """The checkpoints of a run."""

    def __init__(
        self, out: Path, run: RunConfig, model: LanguageModel, tokenizer: Tokenizer, data_digest: str
    ):
        self.directory = out / "checkpoints"
        self._run = run
        self._model = model
        self._tokenizer = tokenizer
        self._data_digest = data_digest

    def write(self, state: State, progress: Progress) -> Path:
        """Write a checkpoint of a state on the host, then forget those that are not kept."""
        target = self.directory / f"step-{progress.step:08d}"
        if not target.exists():
            with building(target) as directory:
                self._write_files(directory, state, progress)
        if progress.best and progress.best.step == progress.step:
            self._mark_best(target)
        self._prune(progress)
        return target

    def _write_files(self, directory: Path, state: State, progress: Progress) -> None:
        export(directory, self._run, self._model, self._tokenizer, state.parameters)
        write_arrays(directory / OPTIMIZER, _by_path(state._replace(parameters={})))
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        content = {
            "format": FORMAT,
            "version": __version__,
            "run": self._run.to_dict(),
            "seeds": list(self._run.all_seeds),
            "data_digest": self._data_digest,
            "tokenizer_digest": self._tokenizer.digest,
            "progress": asdict(progress),
            "files": {str(path.relative_to(directory)): file_sha256(path) for path in files},
        }
        write_sealed(directory / RECORD, content)

    def _mark_best(self, target: Path) -> None:
        """Point the link `best` to a checkpoint; at no moment does it point to nothing."""
        link = self.directory / f".best.{os.urandom(6).hex()}"
        link.symlink_to(target.name)
        link.replace(self.directory / "best")

    def _prune(self, progress: Progress) -> None:
        kept = checkpoint_paths(self.directory)[: self._run.keep]
        best = f"step-{progress.best.step:08d}" if progress.best else None
        for path in checkpoint_paths(self.directory):
            if path not in kept and path.name != best:
                shutil.rmtree(path)

    def read(self, path: Path, record: dict[str, Any], like: State) -> tuple[Progress, State]:
        """Where a run stood and its state, which has the shapes of `like`.

        Args:
            record: of the checkpoint, as `newest_good` found it.

        Raises:
            FileError: a file has changed meanwhile, or is of another model.
        """
        found = self._read_parameters(path, record["files"])
        check_shapes(found, like.parameters, str(path))
        rest = read_arrays(path / OPTIMIZER, record["files"][OPTIMIZER])
        empty = like._replace(parameters={})
        check_shapes(rest, _by_path(empty), str(path))
        leaves = [rest[name] for name in _by_path(empty)]
        state = jax.tree.unflatten(jax.tree.structure(empty), leaves)
        where = record["progress"]
        best = where["best"] and Best(**where["best"])
        progress = Progress(where["step"], where["seconds"], best)
        return progress, state._replace(parameters=found)

    def _read_parameters(self, path: Path, files: dict[str, str]) -> Arrays:
        each = [
            read_arrays(directory / ARRAYS, files[str((directory / ARRAYS).relative_to(path))])
            for directory in model_directories(path, self._run)
        ]
        if self._run.seeds == 1:
            return each[0]
        return {name: np.stack([arrays[name] for arrays in each]) for name in each[0]}


def export(
    directory: Path, run: RunConfig, model: LanguageModel, tokenizer: Tokenizer, parameters: Arrays
) -> None:
    """Write the model of every seed, and its tokenizer, as `qkvflow.load` reads it."""
    for i, target in enumerate(model_directories(directory, run)):
        target.mkdir(exist_ok=True)
        own = {name: array[i] for name, array in parameters.items()} if run.seeds > 1 else parameters
        write_model(target, model, own)
        (target / TOKENIZER).write_text(json.dumps(tokenizer.to_dict()), encoding="utf-8")


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a trained model, from where `qkvflow.load` finds the model."""
    file = find_models(Path(path).expanduser())[0] / TOKENIZER
    try:
        return tokenizer_from_dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise FileError(f"{file} is missing: only `qkvflow train` writes one.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{file} cannot be read: {error}.") from error


def model_directories(directory: Path, run: RunConfig) -> list[Path]:
    """Where the models of a run lie: here, or, of several seeds, each in a directory of its own."""
    return [directory] if run.seeds == 1 else [directory / f"seed-{seed}" for seed in run.all_seeds]


def checkpoint_paths(directory: Path) -> list[Path]:
    """All checkpoints of a directory, the newest first, good or not."""
    return sorted(directory.glob("step-????????"), reverse=True)


def check_checkpoint(path: Path) -> dict[str, Any]:
    """The record of a checkpoint, all of whose files are as they were written."""
    content = read_sealed(path / RECORD, FORMAT)
    for name, sha256 in content["files"].items():
        if not (path / name).is_file():
            raise FileError(f"{path / name} is missing.")
        if file_sha256(path / name) != sha256:
            raise FileError(
                f"{path / name} was changed or cut short after it was written: its sha256 differs."
            )
    return content


def newest_good(directory: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """The newest checkpoint that is as it was written, its record, and what is wrong with newer ones.

    Those are set aside under the name bad-step-..., so that they are not in the way. Leftovers of a
    killed process are removed.

    Raises:
        FileError: there are checkpoints, and none is good.
    """
    remove_abandoned(directory)
    problems: list[str] = []
    bad: list[Path] = []
    for path in checkpoint_paths(directory):
        try:
            content = check_checkpoint(path)
        except FileError as error:
            problems.append(str(error))
            bad.append(path)
            continue
        for other in bad:
            other.rename(_free_name(other.with_name(f"bad-{other.name}")))
        return path, content, problems
    if problems:
        raise FileError(
            f"No checkpoint in {directory} can be used: {' '.join(problems)} Remove the directory to "
            "begin again."
        )
    return None, {}, []


def _free_name(path: Path) -> Path:
    return path if not path.exists() else path.with_name(f"{path.name}-{os.urandom(3).hex()}")


def _by_path(tree: Any) -> Arrays:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}
