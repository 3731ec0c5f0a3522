"""Where a run keeps its models, and how one is read back.

RUN/final/                        the trained model
RUN/checkpoints/step-00000250/    a model, and what training needs to go on
.../seed-0/ .../seed-1/           with several seeds, one model in each
"""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from qkvflow import plugins
from qkvflow.config import RunConfig
from qkvflow.data import DataError, Tokenizer, tokenizer_from_dict
from qkvflow.files import FileError, expanded, file_sha256, first_of, read_json, state_of
from qkvflow.models import LanguageModel
from qkvflow.models.paths import Arrays
from qkvflow.models.storage import ARRAYS, CONFIG, TOKENIZER, read_about, read_model, write_model

ADAPTER = "adapter.json"
"""What an adapter has where a model has a config.json."""
_Read = TypeVar("_Read")


def load_model(path: str | os.PathLike[str]) -> LanguageModel:
    """A model from a directory that `save` wrote, from a checkpoint, or from a run.

    Of a run it is the final model or, while the run is not finished, that of its newest good
    checkpoint.

    Raises:
        FileError: nothing is there, or a file is cut short, changed, or of a newer version.
    """
    return _read_newest(expanded(path), read_model)


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a trained model, from where `qkvflow.load` finds the model."""
    found = find_tokenizer(path)
    if found is None:
        raise FileError(f"{path} holds a model without a {TOKENIZER}.")
    return found


def find_tokenizer(path: str | os.PathLike[str]) -> Tokenizer | None:
    """The tokenizer of a model; None where it was saved without one, as an imported one may be."""
    return _read_newest(expanded(path), _read_tokenizer)


def _read_tokenizer(directory: Path) -> Tokenizer | None:
    about, file = read_about(directory), directory / TOKENIZER
    if TOKENIZER not in about["files"]:
        return None
    if not file.is_file() or file_sha256(file) != about["files"][TOKENIZER]:
        raise FileError(f"{file} is missing, or was changed after it was written.")
    try:
        with plugins.needed_by(str(directory), about["plugins"]):
            return tokenizer_from_dict(read_json(file))
    except DataError as error:
        raise FileError(f"{file} cannot be used: {error}") from error


def _read_newest(path: Path, read: Callable[[Path], _Read]) -> _Read:
    *newer, last = find_models(path)
    for directory in newer:
        try:
            return read(directory)
        except FileError as error:
            warnings.warn(f"{error} Using the next older checkpoint.", stacklevel=4)
    return read(last)


def find_models(path: Path) -> list[Path]:
    """Where a model may be read from, the best choice first; never empty."""
    if (path / CONFIG).is_file():
        return [path]
    if (path / "final" / CONFIG).is_file():
        return [path / "final"]
    several = [
        found for place in ("", "final/", "checkpoints/*/") for found in path.glob(f"{place}seed-*")
    ]
    if several:
        raise FileError(f"{path} holds several models; name one of them, such as {min(several)}.")
    found = [step for step in checkpoint_paths(path / "checkpoints") if (step / CONFIG).is_file()]
    if found:
        return found
    raise FileError(
        f"{path} {state_of(path, 'holds no model')}: expected a directory with {CONFIG} and {ARRAYS}, "
        f"or that of a training run.{_instead(path)}"
    )


def _instead(path: Path) -> str:
    """What to name in place of a directory that holds no model, if that is at hand."""
    if (path / ADAPTER).is_file():
        return " It holds an adapter: name its base, and this with qkvflow export --adapter."
    places = [path.parent, *sorted(path.glob("*/"))]
    return first_of(
        place for place in places for kept in ("", "final") if (place / kept / CONFIG).is_file()
    )


def checkpoint_paths(directory: Path) -> list[Path]:
    """All checkpoints of a directory, the newest first, good or not."""
    return sorted(directory.glob("step-????????"), reverse=True)


def write_models(
    directory: Path, run: RunConfig, model: LanguageModel, tokenizer: Tokenizer, parameters: Arrays
) -> None:
    """Write the model of every seed, and its tokenizer."""
    text = json.dumps(tokenizer.to_dict())
    for i, target in enumerate(model_directories(directory, run)):
        target.mkdir(exist_ok=True)
        own = {name: array[i] for name, array in parameters.items()} if run.seeds > 1 else parameters
        write_model(target, model, own, text)


def model_directories(directory: Path, run: RunConfig) -> list[Path]:
    """Where the models of a run lie: here, or, of several seeds, each in a directory of its own."""
    return [directory] if run.seeds == 1 else [directory / f"seed-{seed}" for seed in run.all_seeds]
