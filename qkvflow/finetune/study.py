"""The adaptation experiment of Tong et al. (ICLR 2025): pretrain, change the depth, adapt.

Every model is pretrained on a corpus, sampled at several depths, and adapted to another corpus, full
and with LoRA; beside it stand models that are trained on the other corpus from scratch, for as many
steps. This is done in both directions, over paired seeds.

    OUT/study.json                              what is compared
    OUT/pretrain/CORPUS/MODEL/seed-0/ .json     the bases: a run and its record
    OUT/runs/A-to-B/MODEL-METHOD/at-3/seed-0/ .json
    OUT/summary.json                            losses by direction, arm and depth
    OUT/report.html, report.md, figures/        the same for a reader

All text is read in bytes, so that one tokenizer serves both corpora and nothing is unknown. Learning
rates are fixed beforehand, one for each method, and not swept.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow import statistics
from qkvflow.config import ConfigError, Gpt2Config, OptimizerConfig, RunConfig, strict
from qkvflow.config.history import moved_run
from qkvflow.config.strict import from_dict, to_dict, type_problems
from qkvflow.experiments.jobs import Job
from qkvflow.experiments.records import Failed, Finished, Record
from qkvflow.experiments.runner import Watcher, carry_out
from qkvflow.experiments.store import read_record
from qkvflow.files import FileError, read_json, write_json
from qkvflow.finetune.config import FinetuneConfig, Method, finetuning_run
from qkvflow.models import MODELS

SCRATCH = "scratch"


def _small() -> Gpt2Config:
    return Gpt2Config(hidden_dim=64, num_heads=4, num_layers=6, time_embed_dim=8, sinusoidal_dim=8)


@strict
@dataclass(frozen=True)
class Study:
    """What is pretrained, adapted and compared."""

    corpora: tuple[str, ...] = ("embedded", "wikitext-2")
    """Texts to train on; models of each are adapted to every other."""
    models: tuple[str, ...] = ("tong_neuralode", "standard")
    """Models that are pretrained and adapted."""
    depths: tuple[int, ...] = (3, 6, 8, 12)
    """Layers of the adapted models."""
    methods: tuple[Method, ...] = ("full", "lora")
    """Ways to adapt a model."""
    seeds: int = 3
    """Number of seeds; every model and method is run with each."""
    pretraining_steps: int = 1500
    """Training steps of the models that are adapted."""
    steps: int = 250
    """Training steps of an adaptation, and of a model from scratch."""
    batch_size: int = 16
    """Windows of text in a step."""
    length: int = 64
    """Bytes in a window."""
    rank: int = 8
    """Rank of the adapters."""
    pretraining_rate: float = 3e-3
    """Learning rate of pretraining and of training from scratch."""
    full_rate: float = 1e-3
    """Learning rate of adapting all arrays."""
    adapter_rate: float = 4e-3
    """Learning rate of adapters."""
    architecture: Gpt2Config = field(default_factory=_small)
    """Shape of the models that are pretrained."""

    def __post_init__(self) -> None:
        problems = type_problems(self)
        if not problems:
            unknown = [name for name in self.models if name not in MODELS]
            problems += [f"there is no model {name!r}." for name in unknown]
            counts = {"seeds": self.seeds, "depths": min(self.depths, default=0)}
            problems += [f"{n} is {v}; expected at least 1." for n, v in counts.items() if v < 1]
            names = [_short(corpus) for corpus in self.corpora]
            if len(names) < 2 or len(set(names)) < len(names):
                problems.append(f"corpora is {names}; expected two or more of different names.")
        if problems:
            raise ConfigError("This study cannot be made:", problems)

    def run(self, model: str, data: str, steps: int, seed: int, layers: int) -> RunConfig:
        """A run with fresh weights."""
        return RunConfig(
            model=model,
            data=data,
            tokenizer="byte",
            steps=steps,
            batch_size=self.batch_size,
            length=self.length,
            seed=seed,
            eval_every=max(1, steps // 5),
            save_every=max(1, steps // 2),
            eval_tokens=16_384,
            keep=1,
            architecture=dataclasses.replace(self.architecture, num_layers=layers),
            optimizer=OptimizerConfig(learning_rate=self.pretraining_rate),
        )


@dataclass(frozen=True)
class Cell:
    """One place of the table: a base that is adapted, or a model from scratch."""

    source: str
    target: str
    model: str
    method: str
    depth: int
    seed: int

    @property
    def direction(self) -> str:
        """The two corpora."""
        return f"{_short(self.source)}-to-{_short(self.target)}"

    @property
    def arm(self) -> str:
        """The line of the figure that it is on."""
        return f"{self.model}-{self.method}"

    @property
    def place(self) -> str:
        """Where its record is in the directory of the study."""
        return f"runs/{self.direction}/{self.arm}/at-{self.depth}/seed-{self.seed}"


def run_study(study: Study, out: Path, watcher: Watcher | None = None) -> dict[str, Any]:
    """Do all that is not done yet; write and return the summary.

    Raises:
        FileError: the directory holds another study, or a base could not be trained.
    """
    watcher = watcher or Watcher()
    _keep_settings(study, out)
    bases = {place: _base_job(study, out, *place) for place in _bases(study)}
    watcher.stage("pretraining", len(bases))
    for record in carry_out(list(bases.values()), watcher):
        if isinstance(record, Failed):
            raise FileError(f"The base {record.arm}, seed {record.seed} failed: {record.sentence}")
    # Where there is a finished record, the base that it began with need not be there any more.
    left = [cell for cell in _cells(study) if not isinstance(read_record(out, cell.place), Finished)]
    watcher.stage("adapting", len(left))
    carry_out([_job(study, cell, out, bases) for cell in left], watcher)
    summary = summarise(read_records(study, out))
    write_json(out / "summary.json", summary)
    return summary


def read_records(study: Study, out: Path) -> dict[Cell, Record]:
    """The record of every adapted model, loose or packed; all must have ended.

    Raises:
        FileError: one has not.
    """
    found = {cell: read_record(out, cell.place) for cell in _cells(study)}
    missing = [cell.place for cell, record in found.items() if record is None]
    if missing:
        raise FileError(f"{out} has no record of {missing[0]}. Run the study again.")
    return {cell: record for cell, record in found.items() if record is not None}


def summarise(records: Mapping[Cell, Record]) -> dict[str, Any]:
    """Losses by direction, arm and depth; and paired differences of each model to the last one."""
    table: dict[str, Any] = {}
    for cell, record in records.items():
        arms = table.setdefault(cell.direction, {})
        row = arms.setdefault(cell.arm, {}).setdefault(str(cell.depth), {"losses": [], "before": []})
        if isinstance(record, Finished):
            row["losses"].append(record.valid.loss)
            row["before"].append(record.curve[0].loss)
            row["seconds"] = record.seconds
    for arms in table.values():
        for row in (row for arm in arms.values() for row in arm.values()):
            losses = row["losses"]
            row["mean"] = float(np.mean(losses)) if losses else None
            several = len(losses) > 1
            row["ci95"] = statistics.t_interval(losses).half_width if several else None
    return {"losses": table, "differences": _differences(records, table)}


def _differences(records: Mapping[Cell, Record], table: dict[str, Any]) -> list[dict[str, Any]]:
    """Every model less the last named one, of the same method at the same depth, seed by seed."""
    models = list(dict.fromkeys(cell.model for cell in records))
    methods = dict.fromkeys(cell.method for cell in records)
    found: list[dict[str, Any]] = []
    for direction, arms in table.items():
        for model, method in itertools.product(models[:-1], methods):
            pair = [arms[f"{name}-{method}"] for name in (model, models[-1])]
            for depth in pair[0]:
                first, second = (arm[depth]["losses"] for arm in pair)
                if len(first) == len(second) > 1:
                    test = statistics.compare(first, second, 0.01)
                    found.append(
                        {
                            "direction": direction,
                            "first": model,
                            "second": models[-1],
                            "method": method,
                            "depth": int(depth),
                            "difference": test.difference,
                            "ci95": [test.interval.low, test.interval.high],
                            "p_value": test.test.p_value,
                        }
                    )
    adjusted = statistics.holm({str(i): test["p_value"] for i, test in enumerate(found)})
    return [{**test, "p_value_holm": p} for test, (p, _) in zip(found, adjusted.values())]


def read_study(out: Path) -> Study:
    """What was compared in a directory, whichever version wrote it."""
    return from_dict(Study, moved_run(read_json(out / "study.json")))


def _keep_settings(study: Study, out: Path) -> None:
    path = out / "study.json"
    if path.is_file() and read_study(out) != study:
        raise FileError(
            f"{path} is of a study with other settings. Restore them, or choose another directory "
            "with --out."
        )
    write_json(path, to_dict(study))


def _bases(study: Study) -> list[tuple[str, str, int]]:
    return list(itertools.product(study.corpora, study.models, range(study.seeds)))


def _cells(study: Study) -> list[Cell]:
    """All seeds of a cell one after the other: they share what is compiled."""
    methods = (*study.methods, SCRATCH)
    choices = itertools.product(
        itertools.permutations(study.corpora, 2),
        study.models,
        methods,
        study.depths,
        range(study.seeds),
    )
    return [Cell(*pair, model, method, depth, seed) for pair, model, method, depth, seed in choices]


def _base_job(study: Study, out: Path, corpus: str, model: str, seed: int) -> Job:
    layers = study.architecture.num_layers
    run = study.run(model, corpus, study.pretraining_steps, seed, layers)
    place = f"pretrain/{_short(corpus)}/{model}/seed-{seed}"
    return Job(f"{_short(corpus)} {model}", run, out, place)


def _job(study: Study, cell: Cell, out: Path, bases: Mapping[Any, Job]) -> Job:
    name = f"{cell.direction} {cell.arm} at {cell.depth}"
    fresh = study.run(cell.model, cell.target, study.steps, cell.seed, cell.depth)
    if cell.method == SCRATCH:
        return Job(name, fresh, out, cell.place)
    rate = study.full_rate if cell.method == "full" else study.adapter_rate
    own = ("data", "steps", "batch_size", "length", "seed", "eval_every", "eval_tokens", "save_every")
    config = FinetuneConfig(
        checkpoint=str(bases[cell.source, cell.model, cell.seed].out / "final"),
        depth=cell.depth,
        method=cell.method,  # type: ignore[arg-type]
        rank=study.rank,
        optimizer=dataclasses.replace(fresh.optimizer, learning_rate=rate),
        **{name: getattr(fresh, name) for name in own},
    )
    return Job(name, finetuning_run(config), out, cell.place)


def _short(corpus: str) -> str:
    """A corpus as a part of a path: its name, or that of its file."""
    return Path(corpus).stem.replace(":", "-")
