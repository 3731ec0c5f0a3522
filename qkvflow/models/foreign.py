"""Directories in the layout of Hugging Face: config.json, and tensors in safetensors.

The tensors are in model.safetensors or, of large models, in several files that
model.safetensors.index.json names: {"weight_map": {NAME OF A TENSOR: FILE}}. A pickle, such as
pytorch_model.bin, is never read.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from qkvflow.config.strict import COUNTS, describe, matches, shown
from qkvflow.files import FileError, first_of, parse_json, state_of
from qkvflow.models.paths import Arrays
from qkvflow.models.storage import check_finite, shape_problems

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_DTYPES |= {"BF16": ml_dtypes.bfloat16, "BOOL": np.bool_}
_DTYPES |= {f"{kind}{bits}": f"{kind.lower()}{bits // 8}" for kind in "IU" for bits in (8, 16, 32, 64)}


def read_fields(path: Path, kind: str, title: str) -> dict[str, Any]:
    """The fields of config.json, if it describes a model of this kind.

    Raises:
        FileError: it is missing or broken, or of another kind of model.
    """
    file = path / "config.json"
    if not file.is_file():
        state = state_of(path, "holds no config.json")
        instead = first_of(place for place in [path.parent] if (place / "config.json").is_file())
        raise FileError(
            f"{path} {state}: expected a directory with config.json and {WHOLE} in the layout of "
            f"Hugging Face's {title}.{instead}"
        )
    fields = _read_json(file)
    found = fields.get("model_type") if isinstance(fields, dict) else None
    if found != kind:
        raise FileError(f"{file} describes a model of type {found!r}; expected {kind!r}.")
    return fields


def _read_json(file: Path) -> Any:
    try:
        return parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FileError(f"{file} cannot be read: {error}.") from error


def field_problems(
    fields: Mapping[str, Any],
    types: Mapping[str, Any],
    expected: Mapping[str, Any],
    choices: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """A sentence for every field that is missing, of another type, or not supported.

    Args:
        types: of fields, as annotations; whole numbers are sizes.
        expected: the only value of a field that is supported, also where it is absent.
        choices: the values of a field that are supported.
    """
    problems = [
        f"{name} is {shown(fields[name])}; only {value!r} is supported."
        for name, value in expected.items()
        if fields.get(name, value) != value
    ]
    for name, known in choices.items():
        if fields.get(name) not in list(known):
            allowed = ", ".join(known)
            problems.append(f"{name} is {shown(fields.get(name))}; expected one of {allowed}.")
    for name, kind in types.items():
        value = fields.get(name)
        if not matches(value, kind):
            state = "missing" if value is None else f"{shown(value)}; expected {describe(kind)}"
            problems.append(f"{name} is {state}.")
        elif kind in (int, int | None) and value is not None and not 1 <= value < COUNTS:
            problems.append(f"{name} is {shown(value)}; expected 1 to {COUNTS - 1:,}.")
    return problems


def ratio_of(inner: int, hidden: int) -> float:
    """A ratio that the width of the MLP can be made of again without being rounded down."""
    ratio = inner / hidden
    return ratio if int(hidden * ratio) == inner else math.nextafter(ratio, math.inf)


def read_tensors(path: Path, prefix: str, left_out: tuple[str, ...]) -> Arrays:
    """All tensors in float32 by their names without a prefix, but for those with some endings.

    Raises:
        FileError: a file is missing or broken, or a tensor is no finite floats.
    """
    files = _files(path)
    tensors: Arrays = {}
    for file, names in files.items():
        own = {
            name: tensor for name, tensor in _read_file(file).items() if names is None or name in names
        }
        kept = {name: tensor for name, tensor in own.items() if not name.endswith(left_out)}
        tensors |= {name.removeprefix(prefix): _floats(kept[name], name, file) for name in kept}
    check_finite(tensors, str(next(iter(files))), "no model can be made of them")
    return tensors


def _files(path: Path) -> dict[Path, set[str] | None]:
    """The files that hold the tensors, and which of theirs count; None: all."""
    if (path / WHOLE).is_file():
        return {path / WHOLE: None}
    if (path / INDEX).is_file():
        return _shards(path)
    others = sorted(p.name for kind in ("*.bin", "*.bin.index.json", "*.pth") for p in path.glob(kind))
    hint = f" It has {', '.join(others)}: load that elsewhere and save it as safetensors."
    raise FileError(f"{path / WHOLE} is missing.{hint if others else ''}")


def _shards(path: Path) -> dict[Path, set[str] | None]:
    content = _read_json(path / INDEX)
    index = content.get("weight_map") if isinstance(content, dict) else None
    if not matches(index, dict[str, str]) or not index:
        raise FileError(f"{path / INDEX} has no weight_map from tensors to files.")
    for file in sorted({*index.values()}):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise FileError(f"{path / INDEX} names {shown(file)}; expected safetensors beside it.")
        if not (path / file).is_file():
            raise FileError(f"{path / file} is missing, which {INDEX} names.")
    return {
        path / file: {name for name, place in index.items() if place == file}
        for file in sorted({*index.values()})
    }


def _read_file(file: Path) -> Arrays:
    try:
        found = safetensors.deserialize(file.read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise FileError(f"{file} cannot be read: {error}.") from error
    unknown = sorted({tensor["dtype"] for _, tensor in found} - _DTYPES.keys())
    if unknown:
        kinds = ", ".join(unknown)
        raise FileError(f"{file} has numbers of a type that numpy does not know: {kinds}.")
    return {
        name: np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
        for name, tensor in found
    }


def _floats(tensor: np.ndarray, name: str, file: Path) -> np.ndarray:
    """A tensor in float32."""
    if tensor.dtype != ml_dtypes.bfloat16 and not np.issubdtype(tensor.dtype, np.floating):
        raise FileError(f"{file} cannot be used: {name} is of {tensor.dtype}; expected floats.")
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as not finite
        return tensor.astype(np.float32)


def check_tensors(
    tensors: Arrays, expected: Arrays | None, path: Path, title: str, layers: str
) -> None:
    """Refuse tensors that are not those of the model that config.json describes.

    Args:
        expected: None where config.json has more layers than there can be, which `layers` then says.
    """
    problems = [layers] if expected is None else shape_problems(tensors, expected)
    if problems:
        file = path / (WHOLE if (path / WHOLE).is_file() else INDEX)
        raise FileError(
            f"{file} does not hold the {title} that its config.json describes (there: the file, here: "
            f"config.json): {'; '.join(problems)}."
        )
