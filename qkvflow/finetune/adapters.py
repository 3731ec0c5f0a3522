"""Adapters as files, apart from their base: `adapter.safetensors` and `adapter.json`.

The arrays are those that a fine-tuning trained, and nothing of the base; the JSON says which base they
belong to, by the digest of its arrays. Any number of adapters can share one base.
"""

import dataclasses
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkvflow import __version__
from qkvflow.config import ConfigError, Gpt2Config, StartConfig
from qkvflow.config.history import moved_architecture
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.files import FileError, building, read_sealed, write_sealed
from qkvflow.models import LanguageModel
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.models.storage import arrays_digest, read_arrays, shape_problems, write_arrays
from qkvflow.train.start import prepared, trained_paths

FORMAT = 2
ARRAYS, RECORD = "adapter.safetensors", "adapter.json"


def save_adapter(model: LanguageModel, start: StartConfig, directory: str | os.PathLike[str]) -> Path:
    """Write the arrays of a model that a fine-tuning trained to a new directory.

    Raises:
        ConfigError: all arrays were trained: the model itself is what to keep.
        FileError: the directory is there already.
    """
    target = Path(directory).expanduser()
    if start.train == "all":
        problem = "all arrays of the model were trained; save the model itself."
        raise ConfigError("There is no adapter:", [problem])
    if target.exists():
        raise FileError(f"{target} is there already; give a directory that is not, or remove it.")
    arrays = arrays_of(model)
    trained = {path: arrays[path] for path in trained_paths(model, start)}
    with building(target) as place:
        digest = write_arrays(place / ARRAYS, trained)
        content = {
            "version": __version__,
            "base_digest": start.digest,
            "layers": model.config.num_layers,
            "start": asdict(start),
            "adapter": model.config.to_dict()["adapter"],
            "files": {ARRAYS: digest},
        }
        write_sealed(place / RECORD, "adapter", FORMAT, content)
    return target


def load_adapter(
    base: LanguageModel, directory: str | os.PathLike[str], *, depth: int | None = None
) -> LanguageModel:
    """A base with an adapter that was trained on it, at the depth of the training.

    Args:
        depth: another depth, for adapters that are functions of it (depth_lora).

    Raises:
        FileError: the files are missing or broken, or the adapter is of another base.
        ConfigError: this adapter cannot be used at another depth.

    Example:
        model = load_adapter(qkvflow.load("runs/base"), "runs/adapted/adapter")
    """
    path = Path(directory).expanduser()
    if not path.is_dir():
        raise FileError(f"{path} is not there: expected a directory with {RECORD} and {ARRAYS}.")
    content = read_sealed(path / RECORD, "adapter", FORMAT)
    found = arrays_digest(arrays_of(base))
    if found != content["base_digest"]:
        raise FileError(
            f"{path} is an adapter of another base: it was trained on arrays with the digest "
            f"{content['base_digest'][:12]}, and those of this model have {found[:12]}."
        )
    architecture = _architecture(base.config, content)
    _check_depth(architecture.adapter, content["layers"], depth)
    arrays = read_arrays(path / ARRAYS, content["files"][ARRAYS])
    at = content["start"]["depth"] if depth is None else depth
    model = prepared(base, at, architecture)
    own = arrays_of(model)
    problems = shape_problems(arrays, {name: own[name] for name in arrays.keys() & own.keys()})
    if problems:
        raise FileError(f"{path} does not fit the base at this depth: {'; '.join(problems)}.")
    return with_arrays(model, own | arrays)


def _architecture(base: Gpt2Config, content: dict[str, Any]) -> Gpt2Config:
    """The base's, with the adapter of a file of either format."""
    adapter = moved_architecture(content)["adapter"]
    return dataclasses.replace(base, adapter=None if adapter is None else ADAPTERS.read(adapter))


def _check_depth(adapter: Adapter | None, layers: int, depth: int | None) -> None:
    if depth is None or depth == layers or (adapter is not None and adapter.any_depth):
        return
    problem = (
        f"it was trained at {layers} layers and belongs to each of them; depth is {depth}. "
        "Adapters of the method depth_lora are functions of depth and can be used at any."
    )
    raise ConfigError("This adapter has no other depth:", [problem])
