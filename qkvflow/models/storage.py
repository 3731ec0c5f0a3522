"""Models as files: `model.safetensors` (arrays by path) and `config.json`. Never a pickle."""

import hashlib
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import load, save

from qkvflow import __version__, plugins
from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.history import moved_architecture
from qkvflow.files import FileError, building, file_sha256, read_sealed, write_sealed
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.paths import Arrays, arrays_of, with_arrays
from qkvflow.models.registry import model_class

FORMAT = 2
ARRAYS, CONFIG = "model.safetensors", "config.json"
_BFLOAT16 = "|bfloat16"  # safetensors for numpy writes this type, and cannot read it


def save_model(model: LanguageModel, path: str | os.PathLike[str], **texts: str) -> None:
    """Write a model to a new directory, whole or not at all.

    Args:
        texts: further files of the directory, such as `tokenizer="..."` for tokenizer.json.
    """
    target = Path(path).expanduser()
    if target.exists():
        raise FileError(f"{target} is there already; give a directory that is not, or remove it.")
    try:
        with building(target) as directory:
            write_model(directory, model, arrays_of(model), **texts)
    except OSError as error:
        raise FileError(
            f"The model could not be written to {target}: {error.strerror or error}. Nothing was "
            "kept there; free some space or choose another directory."
        ) from error


def write_model(directory: Path, model: LanguageModel, arrays: Arrays, **texts: str) -> None:
    """Write the files of a model of this kind with these arrays into a directory."""
    digests = {ARRAYS: write_arrays(directory / ARRAYS, arrays)}
    for name, text in texts.items():
        (directory / f"{name}.json").write_text(text, encoding="utf-8")
        digests[f"{name}.json"] = file_sha256(directory / f"{name}.json")
    content = {
        "version": __version__,
        "model": None if model.preset is None else model.preset.name,
        "architecture": model.config.to_dict(),
        "plugins": plugins.digests(),
        "files": digests,
    }
    write_sealed(directory / CONFIG, "model", FORMAT, content)


def names_of_texts(directory: Path) -> list[str]:
    """The texts that a model was saved with, such as tokenizer."""
    files = read_sealed(directory / CONFIG, "model", FORMAT)["files"]
    return [name.removesuffix(".json") for name in files if name != ARRAYS]


def read_text_file(directory: Path, name: str) -> str:
    """The text NAME.json of a model's directory, if it is as it was written."""
    file = f"{name}.json"
    digest = read_sealed(directory / CONFIG, "model", FORMAT)["files"].get(file)
    if digest is None:
        raise FileError(f"{directory} holds a model without a {file}.")
    if not (directory / file).is_file() or file_sha256(directory / file) != digest:
        raise FileError(f"{directory / file} is missing, or was changed after it was written.")
    return (directory / file).read_text(encoding="utf-8")


def plugins_of(directory: Path) -> dict[str, str]:
    """The plugins of the process that wrote a model, with their digests."""
    return read_sealed(directory / CONFIG, "model", FORMAT).get("plugins", {})


def write_arrays(path: Path, arrays: Arrays) -> str:
    """Write arrays by name; returns the sha256 of the file."""
    plain = {}
    for name, array in arrays.items():
        value = np.asarray(array, order="C")
        narrow = value.dtype == ml_dtypes.bfloat16
        plain[name + _BFLOAT16 if narrow else name] = value.view(np.uint16) if narrow else value
    content = save(plain)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def arrays_digest(arrays: Arrays) -> str:
    """The sha256 of arrays, whatever file they are in: names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.asarray(arrays[name], order="C")
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def read_arrays(path: Path, sha256: str) -> Arrays:
    """The arrays of a file whose content has this digest."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise FileError(f"{path} was changed or cut short after it was written: its sha256 differs.")
    try:
        plain = load(content)
    except safetensors.SafetensorError as error:
        raise FileError(f"{path} holds no arrays: {error}.") from error
    return {
        name.removesuffix(_BFLOAT16): array.view(ml_dtypes.bfloat16)
        if name.endswith(_BFLOAT16)
        else array
        for name, array in plain.items()
    }


def read_model(directory: Path) -> LanguageModel:
    """The model whose files are in this directory.

    Raises:
        FileError: a file is missing, cut short, changed, or of a newer version.
    """
    content = read_sealed(directory / CONFIG, "model", FORMAT)
    try:
        with plugins.needed_by(str(directory), content.get("plugins", {})):
            config = Gpt2Config.from_dict(moved_architecture(content["architecture"]))
            cls = FlowLM if content["model"] is None else model_class(content["model"])
    except ConfigError as error:
        raise FileError(f"{directory / CONFIG} cannot be used: {error}") from error
    model = eqx.filter_eval_shape(cls.init, config, key=jax.random.key(0))
    arrays = read_arrays(directory / ARRAYS, content["files"][ARRAYS])
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
