"""Runs that another experiment has finished need not be run again: their records are taken over.

A record is taken where all settings of the run, its seed among them, and the text are the same; what
an arm is called does not matter. It keeps its versions, machine and times, and says where it is from.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from qkvflow.config import RunConfig
from qkvflow.experiments.jobs import Job
from qkvflow.files import FileError, read_json, write_bytes, write_json
from qkvflow.lock import HeldError, locked


def take_over(jobs: Sequence[Job], others: Sequence[Path]) -> None:
    """Give jobs without a record that of the same run in the directory of another experiment.

    One that another process is working on is left to it.
    """
    finished = _finished_runs(others) if others else {}
    for job in jobs:
        found = None if job.digest is None else finished.get(_key(job.run, job.digest), ())
        sources = [source for source in found or () if not job.test or _opened_test(source[1])]
        if sources and not job.record_path.exists():
            with suppress(HeldError), locked(job.claim):
                _take(job, *sources[0])


def _take(job: Job, out: Path, path: Path) -> None:
    if job.record_path.exists():  # since it was looked for, another process has finished it
        return
    _copy_gates(path, job)
    taken = {"arm": job.arm, "taken_from": f"{out.name}/{path.relative_to(out).as_posix()}"}
    write_json(job.record_path, {**read_json(path), **taken})


def _opened_test(path: Path) -> bool:
    return read_json(path)["test"] is not None


def _finished_runs(others: Sequence[Path]) -> dict[str, list[tuple[Path, Path]]]:
    """Experiments and paths of the records in them, by what decides the numbers of a run."""
    found: dict[str, list[tuple[Path, Path]]] = {}
    for out in (other.resolve() for other in others):
        for path in sorted([*out.glob("sweep/*/lr-*.json"), *out.glob("runs/*/seed-*.json")]):
            record = read_json(path)
            if record["status"] == "finished":
                key = _key(RunConfig.from_dict(record["run"]), record["data_digest"])
                found.setdefault(key, []).append((out, path))
    return found


def check_others(others: Sequence[Path]) -> None:
    """Refuse directories without an experiment before anything is run."""
    for out in others:
        if not (out / "plan.yaml").is_file():
            raise FileError(
                f"{out} is no experiment: it has no plan.yaml. Nothing can be taken from it."
            )


def _key(run: RunConfig, digest: str) -> str:
    return json.dumps([run.to_dict(), digest], sort_keys=True)


def _copy_gates(path: Path, job: Job) -> None:
    gates = path.with_name(f"{path.stem}.gates.safetensors")
    if gates.is_file() and job.keep_gates:
        write_bytes(job.out.with_name(f"{job.out.name}.gates.safetensors"), gates.read_bytes())
