"""A tiny experiment, and records without training."""

import copy
import itertools
import re
import struct
from pathlib import Path

from qkvflow.experiments.records import Costs, Evaluation, Failed, Finished, Origin, Point
from qkvflow.experiments.results import save_plan
from qkvflow.experiments.runner import Watcher, complete
from qkvflow.files import read_json

FIRST_VERSION = read_json(Path(__file__).parents[2] / "results" / "first_version.json")
"""The losses that the first version's documents give, in the order of their seeds."""

BASE = {
    "steps": 6,
    "batch_size": 4,
    "length": 16,
    "tokenizer": "byte",
    "eval_every": 3,
    "eval_tokens": 256,
    "save_every": 2,
    "log_every": 1,
    "keep": 1,
    "architecture": {"hidden_dim": 16, "num_heads": 2, "num_layers": 2},
}


def tiny_fields(text, **changes):
    """The tables of a plan with two arms and two seeds."""
    base = {**copy.deepcopy(BASE), "data": str(text)}
    arms = {"standard": {"model": "standard"}, "gated": {"model": "time_indexed_mlp"}}
    return {"base": base, "arms": arms, "seeds": 2, "reference": "standard", **changes}


def without_times(content):
    """A JSON value without what differs from one time to the next."""
    volatile = ("began", "ended", "seconds", "ms_per_step", "all_speeds")
    volatile += ("speed_mean", "speed_median", "speed_std")
    if isinstance(content, dict):
        return {k: without_times(v) for k, v in content.items() if k not in volatile}
    if isinstance(content, list):
        is_curve = bool(content) and all(isinstance(row, list) and len(row) == 3 for row in content)
        rows = [[row[0], row[2]] for row in content] if is_curve else content
        return [without_times(row) for row in rows]
    return content


def check_picture(path):
    """It is a PNG of a size that can be read."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 800
    assert height > 150


def check_pdf(path):
    """It is a PDF, whole, with its fonts."""
    content = path.read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    assert b"/FontFile2" in content, "TrueType fonts are embedded"


def made_up_record(arm, seed, loss, *, steps=100, parameters=1000, rate=1e-3, length=16):
    """The record of a run that never ran."""
    return Finished(
        arm,
        seed,
        made_up_run(steps, rate, length),
        ORIGIN,
        "0123456789abcdef",
        Evaluation(loss, loss / 0.693, 0.01, True, 1000),
        None,
        Costs(parameters, 0, 1e6, 10**12, 10**7),
        12.0,
        20.0 + seed,
        (Point(0, 0.0, 5.0), Point(50, 6.0, loss + 0.5), Point(100, 12.0, loss)),
    )


def made_up_failure(arm, seed, rate=1e-3):
    """The record of a run that failed."""
    return Failed(arm, seed, made_up_run(100, rate, 16), ORIGIN, "no such thing\ntrace")


def made_up_run(steps, rate, length):
    """The settings that a report speaks of."""
    common = {"batch_size": 4, "length": length, "data": "x.txt", "tokenizer": "byte"}
    architecture, optimizer = {"hidden_dim": 16, "num_layers": 2}, {"learning_rate": rate}
    return {**common, "steps": steps, "architecture": architecture, "optimizer": optimizer}


ORIGIN = Origin(
    {"python": "3"},
    {"processor": "a <machine>", "cores": 2, "system": "Linux"},
    "2026-01-01T00:00:00+00:00",
    "2026-01-01T01:00:00+00:00",
)


class Counter(Watcher):
    """Counts runs that were begun here."""

    def __init__(self):
        self.begun = []

    def begin(self, job):
        self.begun.append((job.arm, job.run.seed))
        return ()


def run_all(plan, out):
    """All runs of a plan; what was begun."""
    counter = Counter()
    save_plan(plan, out)
    complete(plan, out, counter)
    return counter.begun


NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?%?")


def numbers_of(report):
    """The numbers in the tables of a page in Markdown: a list per table, of a list per row.

    Two reports that have the same numbers say the same, whatever their sentences and heads are.
    """
    found = []
    for before, line in itertools.pairwise(["", *report.splitlines()]):
        if line.startswith("|") and not before.startswith("|"):
            found.append([])
        elif line.startswith("|") and not line.startswith("| ---"):
            found[-1].append(NUMBER.findall(line))
    return found
