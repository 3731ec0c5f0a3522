"""Where the records of an experiment are: a file each while it runs, lines of one file once packed.

    OUT/PLACE.json       loose; PLACE is runs/ARM/seed-0, sweep/ARM/lr-0.001, tuned or ngram_baselines
    OUT/records.jsonl    packed: one line {"place": PLACE, "content": ...} for what was such a file
    OUT/gates.safetensors    packed: what was OUT/PLACE.gates.safetensors, as PLACE/NAME

Both may be there at once; a loose file is newer than a line of the same place.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from qkvflow.config.strict import shown
from qkvflow.config.yaml_files import read_yaml
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Record, reading, record_of_json, record_to_json
from qkvflow.files import FileError, file_errors, parse_json, read_json, state_of, write_json

PACKED = "records.jsonl"
PACKED_GATES = "gates.safetensors"
RUNS, SWEEP = "runs/*/seed-*", "sweep/*/lr-*"
"""Places of the runs that are compared, and of those that learning rates are chosen by."""
RECORD, GATES = ".json", ".gates.safetensors"
"""How the name of a loose file ends."""
Gates = dict[str, np.ndarray]
"""By the name of a map: an array [layer, gate]."""


def recorded_plan(out: Path) -> Plan:
    """The plan of the experiment in a directory.

    Raises:
        FileError: there is none.
    """
    path = out / "plan.yaml"
    if not path.is_file():
        raise FileError(
            f"{out} is no experiment: it {state_of(out, 'has no plan.yaml')}. Name the --out of a "
            "qkvflow experiment run."
        )
    return reading(Plan.of, read_yaml(path), str(path), "the plan of an experiment")


@dataclass(frozen=True)
class Entry:
    """What a place holds, and where that was read."""

    content: Any
    where: str


def read_place(out: Path, place: str) -> Entry | None:
    """What a place holds, loose or packed; None where there is nothing."""
    path = loose_path(out, place)
    return Entry(read_json(path), str(path)) if path.is_file() else packed(out).get(place)


def loose_path(out: Path, place: str) -> Path:
    """The file that a place is while an experiment runs."""
    return out / f"{place}{RECORD}"


def read_record(out: Path, place: str) -> Record | None:
    """The record of the run at a place, if it has ended."""
    entry = read_place(out, place)
    return None if entry is None else record_of_json(entry.content, entry.where)


def write_record(out: Path, place: str, record: Record) -> None:
    """Keep the record of the run at a place."""
    write_json(loose_path(out, place), record_to_json(record))


def places_like(out: Path, pattern: str) -> list[str]:
    """The places of a pattern that have a record, seeds and rates in their order."""
    return _ordered(out, pattern, RECORD, packed(out))


def _ordered(out: Path, pattern: str, suffix: str, in_one_file: Iterable[str]) -> list[str]:
    lines = {place for place in in_one_file if PurePosixPath(place).match(pattern)}
    return sorted(lines.union(loose_places(out, pattern, suffix)), key=_natural)


def _natural(place: str) -> tuple[str, int, str]:
    """A longer number is a larger one."""
    folder, _, name = place.rpartition("/")
    return folder, len(name), name


def loose_places(out: Path, pattern: str, suffix: str) -> list[str]:
    """The places of a pattern that have a loose file."""
    found = out.glob(f"{pattern}{suffix}")
    return [path.relative_to(out).as_posix().removesuffix(suffix) for path in found]


def packed(out: Path) -> dict[str, Entry]:
    """All lines of OUT/records.jsonl by place; none where there is no such file."""
    path = out / PACKED
    if not path.is_file():
        return {}
    stat = path.stat()
    return _lines(path, (stat.st_ino, stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=16)
def _lines(path: Path, _version: tuple[int, ...]) -> dict[str, Entry]:
    with file_errors(f"{path} cannot be read"):
        lines = enumerate(path.read_bytes().splitlines(), start=1)
    return dict(_entry(line, f"{path}, line {number},") for number, line in lines)


def _entry(line: bytes, where: str) -> tuple[str, Entry]:
    try:
        fields = parse_json(line)
        place, content = fields["place"], fields["content"]
        if not isinstance(place, str):
            raise TypeError(f"place is {shown(place)}")
        return place, Entry(content, where)
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{where} is damaged: {error}. Restore the file.") from error


def loose_gates(out: Path, place: str) -> Path:
    """The file of a run's gates while an experiment runs."""
    return out / f"{place}{GATES}"


def gates_like(out: Path, pattern: str) -> dict[str, Gates]:
    """By place, the gates of all runs of a pattern that have some."""
    in_one_file = packed_gates(out)
    return {
        place: load_gates(path) if (path := loose_gates(out, place)).is_file() else in_one_file[place]
        for place in _ordered(out, pattern, GATES, in_one_file)
    }


def packed_gates(out: Path) -> dict[str, Gates]:
    """By place, what OUT/gates.safetensors holds."""
    path = out / PACKED_GATES
    if not path.is_file():
        return {}
    found: dict[str, Gates] = {}
    for name, array in sorted(load_gates(path).items()):
        place, _, of = name.rpartition("/")
        found.setdefault(place, {})[of] = array
    return found


def load_gates(path: Path) -> Gates:
    """The arrays of a file of gates."""
    try:
        return load_file(path)
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        raise FileError(f"{path} holds no gates: {error}. Restore the file.") from error
