"""A run at its best evaluation: the model of that step, judged as the trained one is.

Where a text is read many times, the loss on the valid split rises again while that of training falls.
The checkpoint of the lowest loss in training (on `eval_tokens` of the valid split) is chosen; what it
reaches on the whole valid split and on the test split is then measured.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow import train
from qkvflow.data import TokenDataset, TokenSplit, windows_per_epoch
from qkvflow.experiments.jobs import Job
from qkvflow.experiments.recording import evaluation_of
from qkvflow.experiments.records import AtBest
from qkvflow.models import LanguageModel
from qkvflow.train import Sink, load_model, read_metrics
from qkvflow.train.checkpoints import best_checkpoint
from qkvflow.train.evaluation import count_windows
from qkvflow.train.metrics import tell_phase


def judged_at_best(job: Job, data: TokenDataset, sinks: Sequence[Sink] = ()) -> AtBest:
    """What the run of a job, which has taken its last step, is at its best evaluation."""
    run, metrics = job.run, read_metrics(job.out / "metrics.jsonl")
    last = load_model(job.out / "final")
    place, step = best_checkpoint(job.out) or (job.out / "final", run.steps)
    model = load_model(place)
    ids = len(data["train"].ids)

    def judged(which: LanguageModel, split: str, tokens: int | None) -> train.Evaluation:
        return evaluated(which, data[split], job, tokens, f"best evaluation, {split} split", sinks)

    return AtBest(
        step,
        evaluation_of(vars(judged(model, "valid", run.final_tokens))),
        evaluation_of(vars(judged(model, "test", None))) if job.test else None,
        judged(model, "train", run.eval_tokens).loss,
        judged(last, "train", run.eval_tokens).loss,
        run.steps * run.batch_size / windows_per_epoch(ids, run.length),
        losses_of_batches(metrics),
    )


def evaluated(
    model: LanguageModel,
    split: TokenSplit,
    job: Job,
    tokens: int | None,
    what: str,
    sinks: Sequence[Sink] = (),
) -> train.Evaluation:
    """A model on so many tokens of a split (None: all), as a job evaluates."""
    run = job.run
    return train.evaluate(
        model,
        split,
        length=run.length,
        batch_size=run.batch_size // run.accumulate,
        tokens=tokens,
        advance=tell_phase(sinks, what, count_windows(split, run.length, tokens)),
        answers_only=run.answers_only,
    )


def lost_its_best(out: Path) -> bool:
    """Whether a run was evaluated in training, and the checkpoint of the best evaluation is gone."""
    seen = _evaluations(read_metrics(out / "metrics.jsonl"))
    return bool(seen) and best_checkpoint(out) is None


def losses_of_batches(metrics: Sequence[dict[str, Any]]) -> tuple[tuple[int, float], ...]:
    """At every evaluation the mean loss of the batches that were logged since the one before."""
    logged = [(r["step"], r["loss"]) for r in metrics if r["kind"] == "train" and r["loss"] is not None]
    found = []
    for before, step in itertools.pairwise([0, *_evaluations(metrics)]):
        losses = [loss for at, loss in logged if before < at <= step]
        if losses:
            found.append((step, float(np.mean(losses))))
    return tuple(found)


def _evaluations(metrics: Sequence[dict[str, Any]]) -> list[int]:
    """The steps after which a run was evaluated in training, with a finite loss."""
    seen = [r for r in metrics if r["kind"] == "valid" and r["loss"] is not None]
    return sorted({record["step"] for record in seen if record["step"]})
