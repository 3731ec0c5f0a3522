"""Packing: all that an experiment recorded, in a handful of files.

    OUT/plan.yaml            as it was
    OUT/records.jsonl        what were the records of its runs, its choices, its baselines
    OUT/gates.safetensors    the gates of its runs, where there are some
    OUT/report.md, figures/*.png

The same records give the same bytes, in whatever order they came. The packed files are written whole
and read back before anything that they hold is removed, so that a kill at any moment loses nothing;
what can be made of the records again (statistics, runs by seed, pdf) is removed, too. Trained models
stay where they are.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from qkvflow.experiments import baselines, store
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import (
    Failed,
    Json,
    choices_of_json,
    record_of_json,
    record_to_json,
)
from qkvflow.experiments.store import Gates
from qkvflow.files import FileError, read_json, write_bytes
from qkvflow.lock import HeldError, locked

_DERIVED: tuple[str, ...] = ("statistics_summary.json", "significance_tests.json")
_DERIVED += ("seed_*.json", "seed_*.pkl", "figures/*.pdf")
_NAMED = 5
"""Runs that are named one by one."""


@dataclass(frozen=True)
class Packed:
    """What packing did."""

    out: Path
    records: int
    """Runs, of sweeps and of the comparison, that are in the packed file."""
    removed: int
    """Files that are no longer needed."""
    unfinished: tuple[str, ...]
    """Planned runs that failed or have not been run, by place."""

    def __str__(self) -> str:
        """What to print."""
        said = f"{self.out}: {self.records} runs in {store.PACKED}, {self.removed} files removed."
        if self.unfinished:
            first, more = ", ".join(self.unfinished[:_NAMED]), len(self.unfinished) - _NAMED
            said += f" Not finished: {first}{f' and {more} more' if more > 0 else ''}."
        return said


def pack(out: Path) -> Packed:
    """Make a handful of files of an experiment; a second time changes nothing.

    Raises:
        FileError: there is no experiment, a run is under way, or a record is damaged.
    """
    plan = store.recorded_plan(out)
    _check_nothing_is_under_way(out)
    contents, gates = _loose_contents(out), _loose_gates(out)
    if contents:
        _write_lines(out, _packed_contents(out) | contents)
    if gates:
        _write_gates(out, store.packed_gates(out) | gates)
    removed = _remove_packed(out, contents, gates) + _remove_derived(out)
    _remove_claims(out)
    runs = sum("/" in place for place in store.packed(out))
    return Packed(out, runs, removed, tuple(_unfinished(plan, out)))


def _check_nothing_is_under_way(out: Path) -> None:
    for claim in sorted(out.rglob(".*.claim")):
        try:
            with locked(claim):
                pass
        except HeldError as error:
            raise FileError(f"{_place_of(claim, out)} of {out} is under way: {error}") from error


def _place_of(claim: Path, out: Path) -> str:
    name = claim.name.removeprefix(".").removesuffix(".claim")
    return (claim.parent / name).relative_to(out).as_posix()


def _loose_contents(out: Path) -> dict[str, Json]:
    """By place, what loose files hold, as it is packed: records in today's schema."""
    patterns = (store.RUNS, store.SWEEP, "tuned", baselines.PLACE)
    places = [place for pattern in patterns for place in store.loose_places(out, pattern, store.RECORD)]
    return {place: _content(store.loose_path(out, place), place) for place in places}


def _loose_gates(out: Path) -> dict[str, Gates]:
    places = store.loose_places(out, store.RUNS, store.GATES)
    return {place: store.load_gates(store.loose_gates(out, place)) for place in places}


def _write_lines(out: Path, contents: Mapping[str, Json]) -> None:
    lines = [_line(place, contents[place]) for place in sorted(contents)]
    write_bytes(out / store.PACKED, "".join(lines).encode())
    if _packed_contents(out) != dict(contents):
        raise FileError(f"{out / store.PACKED} is not what was written. Nothing was removed.")


def _packed_contents(out: Path) -> dict[str, Json]:
    return {place: entry.content for place, entry in store.packed(out).items()}


def _line(place: str, content: Json) -> str:
    fields = {"place": place, "content": content}
    return json.dumps(fields, separators=(",", ":"), allow_nan=False) + "\n"


def _write_gates(out: Path, gates: Mapping[str, Gates]) -> None:
    named = {f"{place}/{name}": array for place, of in gates.items() for name, array in of.items()}
    write_bytes(out / store.PACKED_GATES, save(dict(sorted(named.items()))))
    if not _equal(store.load_gates(out / store.PACKED_GATES), named):
        raise FileError(f"{out / store.PACKED_GATES} is not what was written. Nothing was removed.")


def _remove_packed(out: Path, contents: Mapping[str, Json], gates: Mapping[str, Gates]) -> int:
    """Remove loose files that are in the packed ones; not one that was written anew meanwhile."""
    removed = 0
    for place in sorted({*contents, *gates}):
        record, of_gates = store.loose_path(out, place), store.loose_gates(out, place)
        if not record.is_file() and not of_gates.is_file():
            continue
        with locked(record.with_name(f".{record.stem if '/' in place else 'tuned'}.claim")):
            if record.is_file() and _content(record, place) == contents.get(place):
                record.unlink()
                removed += 1
            if of_gates.is_file() and _equal(store.load_gates(of_gates), gates.get(place, {})):
                of_gates.unlink()
                removed += 1
        _remove_empty(record.parent, out)
    return removed


def _content(path: Path, place: str) -> Json:
    """What a loose file holds, as it is packed."""
    content = read_json(path)
    if "/" in place:
        return record_to_json(record_of_json(content, str(path)))
    if place == "tuned":
        choices_of_json(content, str(path))  # refuses what are none
    return content


def _equal(first: Gates, second: Gates) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[n], second[n]) for n in first)


def _remove_derived(out: Path) -> int:
    """Remove what a command makes of the records again."""
    paths = [path for pattern in _DERIVED for path in out.glob(pattern)]
    paths += [path for path in (out / "figures").glob("*.png") if not _is_shown(out, path)]
    for path in paths:
        path.unlink()
        _remove_empty(path.parent, out)
    return len(paths)


def _is_shown(out: Path, picture: Path) -> bool:
    report = out / "report.md"
    return not report.is_file() or f"(figures/{picture.name})" in report.read_text(encoding="utf-8")


def _remove_claims(out: Path) -> None:
    """Remove what processes held while they made runs that are packed now; nobody will make these."""
    for claim in sorted(out.rglob(".*.claim")):
        if _place_of(claim, out) in store.packed(out):
            with locked(claim):
                (claim / ".lock").unlink()
            _remove_empty(claim, out)


def _remove_empty(folder: Path, out: Path) -> None:
    """Remove a folder, and those around it within the experiment, as far as they are empty."""
    with suppress(OSError):  # it is not empty
        while folder != out:
            folder.rmdir()
            folder = folder.parent


def _unfinished(plan: Plan, out: Path) -> Iterator[str]:
    """Runs that the plan has and that did not finish."""
    for arm, seed in itertools.product(plan.names, plan.seeds):
        place = f"runs/{arm}/seed-{seed}"
        record = store.read_record(out, place)
        if record is None or isinstance(record, Failed):
            yield f"{place} ({'not run' if record is None else record.sentence})"
