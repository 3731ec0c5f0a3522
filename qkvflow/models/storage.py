"""Models as files: `model.safetensors` (arrays by path) and `config.json`. Never a pickle."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from qkvflow.config.strict import matches, read_typed, shown
from qkvflow.files import (
    FileError,
    building,
    check_digests,
    expanded,
    file_errors,
    file_sha256,
    read_bytes,
    write_sealed,
)
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.named import model_class
from qkvflow.models.paths import Arrays, arrays_of, with_arrays

FORMAT = 2
ARRAYS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
CARD = "README.md"
_TYPES: dict[str, Any] = {"model": str | None, "architecture": dict[str, Any], "files": dict[str, str]}
_BFLOAT16 = "|bfloat16"  # safetensors for numpy writes this type, and cannot read it


def save_model(
    model: LanguageModel,
    path: str | os.PathLike[str],
    tokenizer: str | None = None,
    card: str | None = None,
) -> None:
    """Write a model to a new directory, or nothing; with its tokenizer as JSON and its card, if any."""
    with new_model_directory(path) as directory:
        write_model(directory, model, arrays_of(model), tokenizer)
        if card is not None:
            (directory / CARD).write_text(card, encoding="utf-8")


@contextmanager
def new_model_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory for the files of a model, which is there in the end whole or not at all.

    Raises:
        FileError: it is there already, or cannot be written.
    """
    target = expanded(path)
    if target.exists():
        raise FileError(f"{target} already exists; choose another directory, or remove it.")
    remedy = "Nothing was kept there; free some space or choose another directory."
    with (
        file_errors(f"The model could not be written to {target}", remedy),
        building(target) as directory,
    ):
        yield directory


def write_model(directory: Path, model: LanguageModel, arrays: Arrays, tokenizer: str | None) -> None:
    """Write the files of a model of this kind with these arrays into a directory."""
    digests = {ARRAYS: write_arrays(directory / ARRAYS, arrays)}
    if tokenizer is not None:
        (directory / TOKENIZER).write_text(tokenizer, encoding="utf-8")
        digests[TOKENIZER] = file_sha256(directory / TOKENIZER)
    content = {
        "version": __version__,
        "model": None if model.preset is None else model.preset.name,
        "architecture": model.config.to_dict(),
        "plugins": plugins.digests(),
        "files": digests,
    }
    write_sealed(directory / CONFIG, "model", FORMAT, content)


def read_about(directory: Path) -> dict[str, Any]:
    """What a model's directory says of it: architecture, plugins with their digests, files with theirs.

    Raises:
        FileError: that is missing, changed, or of a newer version.
    """
    content = read_typed(directory / CONFIG, "model", FORMAT, _TYPES)
    if ARRAYS not in content["files"]:
        raise FileError(f"{directory / CONFIG} names no {ARRAYS}: it is not whole.")
    return {**content, "plugins": known_plugins(content, directory / CONFIG)}


def check_model(directory: Path) -> None:
    """Refuse the files of a model that cannot be read: missing, not as they were written, another's.

    Raises:
        FileError: with its name.
    """
    check_digests(directory, read_about(directory)["files"])
    read_model(directory)


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


def can_be_written(dtype: Any) -> bool:
    """Whether `write_arrays` writes numbers of this type so that `read_arrays` has them back."""
    return isinstance(dtype, np.dtype) and (dtype.isbuiltin == 1 or dtype == ml_dtypes.bfloat16)


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
        plain = load(read_bytes(path, sha256))
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
    content = read_about(directory)
    try:
        with plugins.needed_by(str(directory), content["plugins"]):
            config = Gpt2Config.from_dict(moved_architecture(content["architecture"]))
            cls = FlowLM if content["model"] is None else model_class(content["model"])
    except ConfigError as error:
        raise FileError(f"{directory / CONFIG} cannot be used: {error}") from error
    model = eqx.filter_eval_shape(cls.init, config, key=jax.random.key(0))
    arrays = read_arrays(directory / ARRAYS, content["files"][ARRAYS])
    check_shapes(arrays, arrays_of(model), str(directory))
    check_finite(arrays, str(directory))
    return with_arrays(model, {name: jnp.asarray(array) for name, array in arrays.items()})


def check_shapes(found: Arrays, expected: Arrays, source: str) -> None:
    """Refuse arrays that are another model's, with both shapes."""
    problems = shape_problems(found, expected)
    if problems:
        raise FileError(f"{source} holds another model: {'; '.join(problems)}.")


def check_finite(arrays: Arrays, source: str, so: str = "its training failed") -> None:
    """Refuse arrays with numbers that are none, by their names; `so` is what that means."""
    bad = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if bad:
        raise FileError(
            f"{source} holds numbers that are not finite, in {', '.join(bad[:3])}"
            f"{f' and {len(bad) - 3} more arrays' if len(bad) > 3 else ''}: {so}."
        )


def known_plugins(content: dict[str, Any], path: Path) -> dict[str, str]:
    """The plugins that a sealed file names, with their digests; the first files name none."""
    found = content.get("plugins", {})
    if not matches(found, dict[str, str]):
        raise FileError(f"{path} cannot be used: plugins is {shown(found)}; expected digests by name.")
    return found


def shape_problems(found: Arrays, expected: Arrays) -> list[str]:
    """What differs between the shapes of arrays by name; the first three, and how many more."""
    problems = [
        f"{name} is {_shape(found, name)} there and {_shape(expected, name)} here"
        for name in sorted(found.keys() | expected.keys())
        if _shape(found, name) != _shape(expected, name)
    ]
    return problems[:3] + ([f"and {len(problems) - 3} more arrays"] if len(problems) > 3 else [])


def _shape(arrays: Arrays, name: str) -> str:
    if name not in arrays:
        return "absent"
    of, usual = arrays[name].dtype, np.dtype(np.float32)
    return str(tuple(arrays[name].shape)) + ("" if of == usual else f" of {of}")
