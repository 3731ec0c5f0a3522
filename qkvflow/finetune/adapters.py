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
from qkvflow.config.strict import read_typed
from qkvflow.config.variants import ADAPTERS, INTEGRATORS, Adapter
from qkvflow.files import (
    FileError,
    building,
    check_digests,
    expanded,
    first_of,
    state_of,
    write_sealed,
)
from qkvflow.models import LanguageModel
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.models.storage import (
    arrays_digest,
    check_finite,
    read_arrays,
    shape_problems,
    write_arrays,
)
from qkvflow.train.run_files import ADAPTER
from qkvflow.train.start import prepared, trained_paths

FORMAT = 2
ARRAYS, RECORD = "adapter.safetensors", ADAPTER
_TYPES: dict[str, Any] = {"base_digest": str, "layers": int, "start": dict[str, Any]}
_TYPES |= {"adapter": str | dict[str, Any] | None, "files": dict[str, str]}


def save_adapter(model: LanguageModel, start: StartConfig, directory: str | os.PathLike[str]) -> Path:
    """Write the arrays of a model that a fine-tuning trained to a new directory.

    Raises:
        ConfigError: all arrays were trained: the model itself is what to keep.
        FileError: the directory is there already.
    """
    target = expanded(directory)
    if start.train == "all":
        problem = "all arrays of the model were trained; save the model itself."
        raise ConfigError("There is no adapter:", [problem])
    if target.exists():
        raise FileError(f"{target} already exists; choose another directory, or remove it.")
    arrays = arrays_of(model)
    trained = {path: arrays[path] for path in trained_paths(model, start)}
    with building(target) as place:
        digest = write_arrays(place / ARRAYS, trained)
        content = {
            "version": __version__,
            "base_digest": start.digest,
            "layers": model.config.num_layers,
            "start": asdict(start),
            **{name: model.config.to_dict()[name] for name in ("adapter", "integrator")},
            "files": {ARRAYS: digest},
        }
        write_sealed(place / RECORD, "adapter", FORMAT, content)
    return target


def check_adapter(directory: Path) -> None:
    """Refuse the files of an adapter where one is missing or not as it was written."""
    check_digests(directory, read_typed(directory / RECORD, "adapter", FORMAT, _TYPES)["files"])


def load_adapter(
    base: LanguageModel, directory: str | os.PathLike[str], *, depth: int | None = None
) -> LanguageModel:
    """A base with an adapter that was trained on it, at the depth of the training.

    Args:
        depth: another depth, for adapters that are functions of it (depth_lora).

    Raises:
        FileError: the files are missing or broken, or the adapter is of another base.
        ConfigError: this adapter cannot be used at another depth.

    Examples:
        model = load_adapter(qkvflow.load("runs/base"), "runs/adapted/adapter")
    """
    path = expanded(directory)
    if not (path / RECORD).is_file():
        places = (path / "adapter", path.parent, path.parent / "adapter")
        instead = first_of(place for place in places if (place / RECORD).is_file())
        raise FileError(
            f"{path} {state_of(path, 'holds no adapter')}: expected a directory with {RECORD} and "
            f"{ARRAYS}, such as qkvflow finetune --method lora leaves in OUT/adapter.{instead}"
        )
    content = read_typed(path / RECORD, "adapter", FORMAT, _TYPES)
    if ARRAYS not in content["files"]:
        raise FileError(f"{path / RECORD} names no {ARRAYS}: it is not whole.")
    start, architecture = _settings(base.config, content, path / RECORD)
    found = arrays_digest(arrays_of(base))
    if found != content["base_digest"]:
        raise FileError(
            f"{path} is an adapter of another base: it was trained on arrays with the digest "
            f"{content['base_digest'][:12]}, and those of this model have {found[:12]}. It was trained "
            f"on {start.checkpoint}; name that as the base."
        )
    _check_depth(architecture.adapter, content["layers"], depth)
    arrays = read_arrays(path / ARRAYS, content["files"][ARRAYS])
    check_finite(arrays, str(path))
    model = prepared(base, start.depth if depth is None else depth, architecture)
    if depth is None:
        steps = dataclasses.replace(model.config, integrator=architecture.integrator)
        model = dataclasses.replace(model, config=steps)
    own = arrays_of(model)
    problems = shape_problems(arrays, {name: own[name] for name in trained_paths(model, start)})
    if problems:
        raise FileError(f"{path} does not fit the base at this depth: {'; '.join(problems)}.")
    return with_arrays(model, own | arrays)


def _settings(base: Gpt2Config, content: dict[str, Any], path: Path) -> tuple[StartConfig, Gpt2Config]:
    """How it was trained, and the base's architecture with its adapter; of a file of either format."""
    try:
        adapter = moved_architecture(content)["adapter"]
        own = None if adapter is None else ADAPTERS.read(adapter)
        # Before it was written down, a base kept its integrator at every depth.
        integrator = INTEGRATORS.read(content.get("integrator", base.integrator))
        found = dataclasses.replace(base, adapter=own, integrator=integrator)
        return StartConfig.from_dict(content["start"]), found
    except ConfigError as error:
        raise FileError(f"{path} cannot be used: {error}") from error


def _check_depth(adapter: Adapter | None, layers: int, depth: int | None) -> None:
    if depth is None or depth == layers or (adapter is not None and adapter.any_depth):
        return
    problem = (
        f"it was trained at {layers} layers and belongs to each of them; depth is {depth}. "
        "Adapters of the method depth_lora are functions of depth and can be used at any."
    )
    raise ConfigError("This adapter has no other depth:", [problem])
