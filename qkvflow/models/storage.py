"""Models as files: `model.safetensors` (arrays by path) and `config.json`. Never a pickle."""

import hashlib
import os
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors.numpy import load, save

from qkvflow import __version__
from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.files import FileError, building, read_sealed, write_sealed
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.paths import Arrays, arrays_of, with_arrays
from qkvflow.models.registry import model_class

FORMAT = 1
ARRAYS, CONFIG = "model.safetensors", "config.json"


def save_model(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Write a model to a new directory, whole or not at all."""
    target = Path(path).expanduser()
    if target.exists():
        raise FileError(f"{target} is there already; give a directory that is not, or remove it.")
    try:
        with building(target) as directory:
            write_model(directory, model, arrays_of(model))
    except OSError as error:
        raise FileError(
            f"The model could not be written to {target}: {error.strerror or error}. Nothing was "
            "kept there; free some space or choose another directory."
        ) from error


def write_model(directory: Path, model: LanguageModel, arrays: Arrays) -> None:
    """Write the two files of a model of this kind with these arrays."""
    digest = write_arrays(directory / ARRAYS, arrays)
    content = {
        "format": FORMAT,
        "version": __version__,
        "model": None if model.preset is None else model.preset.name,
        "architecture": model.config.to_dict(),
        "arrays_sha256": digest,
    }
    write_sealed(directory / CONFIG, content)


def write_arrays(path: Path, arrays: Arrays) -> str:
    """Write arrays by name; returns the sha256 of the file."""
    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read_arrays(path: Path, sha256: str) -> Arrays:
    """The arrays of a file whose content has this digest."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise FileError(f"{path} was changed or cut short after it was written: its sha256 differs.")
    try:
        return load(content)
    except safetensors.SafetensorError as error:
        raise FileError(f"{path} holds no arrays: {error}.") from error


def load_model(path: str | os.PathLike[str]) -> LanguageModel:
    """A model from a directory that `save` wrote, from a checkpoint, or from a run.

    Of a run it is the final model or, while the run is not finished, that of its newest good
    checkpoint.

    Raises:
        FileError: nothing is there, or a file is cut short, changed, or of a newer version.
    """
    *newer, last = find_models(Path(path).expanduser())
    for directory in newer:
        try:
            return read_model(directory)
        except FileError as error:
            warnings.warn(f"{error} The next older checkpoint is taken.", stacklevel=3)
    return read_model(last)


def find_models(path: Path) -> list[Path]:
    """Where a model may be read from, the best choice first; never empty."""
    if (path / CONFIG).is_file():
        return [path]
    if (path / "final" / CONFIG).is_file():
        return [path / "final"]
    several = [
        found
        for place in ("", "final/", "checkpoints/*/")
        for found in sorted(path.glob(f"{place}seed-*"))
    ]
    if several:
        raise FileError(f"{path} holds several models; name one of them, such as {several[0]}.")
    found = sorted(path.glob(f"checkpoints/step-*/{CONFIG}"), reverse=True)
    if found:
        return [config.parent for config in found]
    state = "holds no model" if path.is_dir() else "is not there"
    raise FileError(
        f"{path} {state}: expected a directory with {CONFIG} and {ARRAYS}, or that of a training run."
    )


def read_model(directory: Path) -> LanguageModel:
    """The model whose two files are in this directory."""
    content = read_sealed(directory / CONFIG, FORMAT)
    try:
        config = Gpt2Config.from_dict(content["architecture"])
    except ConfigError as error:
        raise FileError(f"{directory / CONFIG} cannot be used: {error}") from error
    cls = FlowLM if content["model"] is None else model_class(content["model"])
    model = eqx.filter_eval_shape(cls.init, config, key=jax.random.key(0))
    arrays = read_arrays(directory / ARRAYS, content["arrays_sha256"])
    check_shapes(arrays, arrays_of(model), str(directory))
    return with_arrays(model, {name: jnp.asarray(array) for name, array in arrays.items()})


def check_shapes(found: Arrays, expected: Arrays, source: str) -> None:
    """Refuse arrays that are another model's, with both shapes."""
    problems = shape_problems(found, expected)
    if problems:
        raise FileError(f"{source} holds another model: {'; '.join(problems)}.")


def shape_problems(found: Arrays, expected: Arrays) -> list[str]:
    """What differs between the shapes of arrays by name; the first three, and how many more."""
    problems = [
        f"{name} is {_shape(found, name)} there and {_shape(expected, name)} here"
        for name in sorted(found.keys() | expected.keys())
        if _shape(found, name) != _shape(expected, name)
    ]
    return problems[:3] + ([f"and {len(problems) - 3} more arrays"] if len(problems) > 3 else [])


def _shape(arrays: Arrays, name: str) -> str:
    return str(tuple(arrays[name].shape)) if name in arrays else "absent"
