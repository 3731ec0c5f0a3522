"""Runs that another experiment has finished need not be run again: their records are taken over.

A record is taken where all settings of the run, its seed among them, and the text are the same; what
an arm is called does not matter. It keeps its versions, machine and times, and says where it is from.
"""

import dataclasses
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from safetensors.numpy import save_file

from qkvflow.config import RunConfig
from qkvflow.experiments import store
from qkvflow.experiments.jobs import Job
from qkvflow.experiments.recording import run_of
from qkvflow.experiments.records import Finished
from qkvflow.lock import HeldError, locked

_Source = tuple[Path, str, Finished]
"""An experiment, a place in it and its record."""


def take_over(jobs: Sequence[Job], others: Sequence[Path]) -> None:
    """Give jobs without a record that of the same run in the directory of another experiment.

    One that another process is working on is left to it.
    """
    known = _finished_runs(others) if others else {}
    for job in jobs:
        found = [] if job.digest is None else known.get(_key(job.run, job.digest), [])
        sources = [source for source in found if job.is_judged(source[2])]
        if sources and job.record() is None:
            with suppress(HeldError), locked(job.claim):
                _take(job, *sources[0])


def _take(job: Job, out: Path, place: str, record: Finished) -> None:
    if job.record() is not None:  # since it was looked for, another process has finished it
        return
    gates = store.gates_like(out, place).get(place)
    if gates is not None and job.keep_gates:
        save_file(gates, store.loose_gates(job.root, job.place))
    origin = dataclasses.replace(record.origin, taken_from=f"{out.name}/{place}")
    store.write_record(job.root, job.place, dataclasses.replace(record, arm=job.arm, origin=origin))


def _finished_runs(others: Sequence[Path]) -> dict[str, list[_Source]]:
    """The finished runs of experiments, by what decides the numbers of a run."""
    found: dict[str, list[_Source]] = {}
    for out in (other.resolve() for other in others):
        for place in (*store.places_like(out, store.SWEEP), *store.places_like(out, store.RUNS)):
            record = store.read_record(out, place)
            run = run_of(record) if isinstance(record, Finished) else None
            if isinstance(record, Finished) and run is not None:
                key = _key(run, record.data_digest)
                found.setdefault(key, []).append((out, place, record))
    return found


def _key(run: RunConfig, digest: str) -> str:
    return json.dumps([run.to_dict(), digest], sort_keys=True)
