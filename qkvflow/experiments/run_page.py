"""The page of one run: what it reached, its curve, costs and settings, a sample, what n-grams reach."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qkvflow.config import RunConfig
from qkvflow.data import Tokenizer, default_cache_dir, load_corpus, prepare
from qkvflow.experiments.baselines import ngram_baselines
from qkvflow.experiments.conclusion import beaten_in_words
from qkvflow.experiments.recording import milliseconds_per_step
from qkvflow.experiments.words import model_in_words
from qkvflow.files import FileError, state_of
from qkvflow.generate import generate
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.report.figures import both, figure
from qkvflow.report.history import draw_history
from qkvflow.report.page import (
    Conclusion,
    Heading,
    Item,
    Paragraph,
    Picture,
    Step,
    Verbatim,
    write_both,
)
from qkvflow.report.table import Table
from qkvflow.train import Outcome, load_model, read_metrics, read_tokenizer
from qkvflow.train.metrics import Record
from qkvflow.train.run_files import model_directories

MOST_ROWS = 20
"""Evaluations that a page has room for."""
LIMITS = (
    "This is one run: whether another model, another learning rate or another seed would do better is "
    "not shown; qkvflow experiment run compares them."
)


@dataclass(frozen=True)
class Sample:
    """How the page lets the model write."""

    prompt: str = "The "
    tokens: int = 300
    temperature: float = 0.8
    seed: int = 0


@dataclass(frozen=True)
class Told:
    """All that the page of a run tells."""

    place: Path
    run: RunConfig
    records: list[Record]
    history: list[Record]
    model: LanguageModel
    tokenizer: Tokenizer
    baselines: Mapping[str, float]
    """What n-grams of its text reach, by name; empty where they were not asked for."""

    @property
    def last(self) -> dict[str, Any]:
        """The last evaluation; of several seeds the mean of their losses."""
        seen = [r for r in self.records if r["kind"] in ("valid", "final") and r["loss"] is not None]
        if not seen:
            raise FileError(f"{self.place} has no evaluation yet. Wait for the first one.")
        same = [r for r in seen if (r["step"], r["kind"]) == (seen[-1]["step"], seen[-1]["kind"])]
        means = {name: float(np.mean([r[name] for r in same])) for name in ("loss", "bits_per_byte")}
        return {**seen[-1], **means}


def write_run_page(
    run: Path, sample: Sample, *, ngrams: bool = True, out: Path | None = None
) -> tuple[Path, Path]:
    """OUT/report.html and OUT/report.md, OUT being the run's directory unless another is named.

    Raises:
        FileError: there is no run, or it has no evaluation or no model yet.
        DataError: its text, of which the n-grams are, cannot be had.
    """
    told, place = read_run(run, ngrams), out or run
    _ = told.last  # refused before anything is drawn
    drawn = both(place / "figures", "curve")
    with figure(drawn, 6.4, 3.6) as axes:
        draw_history(axes, told.history, told.run.model, told.baselines)
    return write_both(run_page(told, drawn[0], sample), place)


def read_run(place: Path, ngrams: bool) -> Told:
    """What lies in the directory of a run; its n-grams are fitted once and kept there."""
    records = read_metrics(place / "metrics.jsonl")
    if not records or not (place / "run.yaml").is_file():
        raise FileError(
            f"{place} is no run: it {state_of(place, 'has no run.yaml and metrics.jsonl')}. Name the "
            "--out of a qkvflow train."
        )
    outcome = Outcome(place, records[-1]["step"], records[-1]["kind"] == "final")
    run = outcome.run
    first = place if run.seeds == 1 else model_directories(place / "final", run)[0]
    model, tokenizer, baselines = load_model(first), read_tokenizer(first), dict[str, float]()
    if ngrams and not run.answers_only:
        data = prepare(load_corpus(run.data, limit=run.documents), tokenizer, default_cache_dir())
        baselines = dict(ngram_baselines(data, place).valid)
    return Told(place, run, records, outcome.history, model, tokenizer, baselines)


def run_page(told: Told, curve: Path, sample: Sample) -> list[Item]:
    """All of a run, in the order in which a reader asks."""
    caption = "Loss of batches in training, and on the valid split"
    caption += "; dotted: tables of n-grams." if told.baselines else "."
    page: list[Item] = [Heading(f"Run {told.place.resolve().name.replace('_', ' ')}", 1)]
    page.append(conclude_run(told))
    page += [Picture(curve, caption), _evaluations(told)]
    page += [Heading("Settings"), *map(Paragraph, settings_in_words(told.run, told.model))]
    page += [_costs(told), *_sample(told, sample)]
    if told.baselines:
        rows = tuple((name, f"{loss:.4f}") for name, loss in told.baselines.items())
        note = "Fitted on the train split (Witten-Bell), nats per token on the whole valid split."
        page.append(Table(("n-grams", "valid"), rows, "What n-grams reach", note))
    notes = dict.fromkeys(record["text"] for record in told.records if record["kind"] == "note")
    return [*page, *(Paragraph(f"Noted in the run: {note}") for note in notes)]


def conclude_run(told: Told) -> Conclusion:
    """What the page of a run says first."""
    last, run = told.last, told.run
    part = "the whole" if last["whole"] else f"{last['evaluated_tokens']:,} tokens of the"
    steps = f"{last['step']:,} steps" + (
        "" if last["kind"] == "final" else f" of {run.steps:,}; the run is not finished"
    )
    found = (
        f"{run.model} reaches {last['loss']:.4f} nats per token ({last['bits_per_byte']:.3f} bits per "
        f"byte) on {part} valid split after {steps}."
    )
    facts = [
        ("n-grams", beaten_in_words(last["loss"], told.baselines)),
        ("its cost", ", ".join(f"{value} {name}" for name, value in _cost_lines(told)[:3]) + "."),
        ("the curve", _end_of_curve(told)),
    ]
    where = shlex.quote(str(told.place))
    steps_next = (
        Step(f'qkvflow generate --checkpoint {where} --prompt "The "', "Let it write"),
        Step(f"qkvflow evaluate --checkpoint {where} --depths 2 4 8", "Give it other depths"),
        Step(f"qkvflow analyze all --checkpoint {where}", "Look inside"),
    )
    return Conclusion(found, LIMITS, tuple((head, text) for head, text in facts if text), steps_next)


def _end_of_curve(told: Told) -> str:
    """Whether the loss was still falling over the last quarter of the steps."""
    seen = [p for p in told.history if p["kind"] == "valid" and p["step"] and p["loss"] is not None]
    late = [point for point in seen if point["step"] >= 0.75 * seen[-1]["step"]]
    if len(late) < 2 or late[0]["step"] == late[-1]["step"]:
        return ""
    change = late[-1]["loss"] - late[0]["loss"]
    between = f"From step {late[0]['step']:,} to {late[-1]['step']:,}"
    return f"{between} the valid loss {'fell' if change < 0 else 'rose'} by {abs(change):.4f}."


def _evaluations(told: Told) -> Table:
    """Evaluations of the valid split, evenly spaced where there are many."""
    seen = [r for r in told.records if r["kind"] in ("valid", "final")]
    chosen = np.unique(np.linspace(0, len(seen) - 1, min(len(seen), MOST_ROWS)).round().astype(int))
    rows = tuple(
        (
            f"{record['step']:,}",
            str(record.get("seed", told.run.seed)),
            f"{record['seconds']:.0f}",
            *_losses(record),
            "all" if record["whole"] else f"{record['evaluated_tokens']:,}",
        )
        for record in (seen[i] for i in chosen)
    )
    heads = ("step", "seed", "seconds", "valid", "bits per byte", "perplexity", "tokens of the split")
    return Table(heads, rows, "Evaluations", "Nats per token on the valid split, or a part of it.")


def _losses(record: Record) -> tuple[str, str, str]:
    if record["loss"] is None or record["bits_per_byte"] is None:
        return "not finite", "", ""
    return f"{record['loss']:.4f}", f"{record['bits_per_byte']:.3f}", f"{np.exp(record['loss']):.3f}"


def settings_in_words(run: RunConfig, model: LanguageModel) -> list[str]:
    """What was trained, and how, in sentences."""
    config, optimizer = model.config, run.optimizer
    parts = " and ".join(map(str, config.parts or ()))
    warmup = "" if optimizer.warmup is None else f" after {optimizer.warmup:,} steps of warm-up"
    shape = (
        f"{run.model}: {model_in_words(run.model)}. {config.num_layers} layers of width "
        f"{config.hidden_dim} with {config.num_heads} heads, {parts} ({config.order}), weights "
        f"{config.weights}, {config.integrator} steps, {config.vocab_size:,} symbols."
    )
    how = (
        f"{run.steps:,} steps of {run.batch_size} x {run.length} tokens of {run.data} "
        f"({run.tokenizer}), seed {run.seed}. Optimizer {optimizer.name}, peak learning rate "
        f"{optimizer.learning_rate:g}{warmup}, then {optimizer.schedule}; weight decay "
        f"{optimizer.weight_decay:g}, gradients clipped at {optimizer.clip:g}."
    )
    more = [] if run.start is None else [f"It goes on from {run.start.checkpoint}."]
    more += [f"Every step draws one of the depths {list(run.depths)}."] if run.depths else []
    return [shape, " ".join([how, *more, "All settings are in run.yaml."])]


def _costs(told: Told) -> Table:
    note = (
        "Seconds are those of training steps, without compiling, evaluating and saving. Memory is that "
        "of parameters, optimizer, gradients and the work of a step, as the compiler plans it."
    )
    rows = tuple((name, value) for name, value in _cost_lines(told))
    return Table(("cost", "value"), rows, "Costs", note)


def _cost_lines(told: Told) -> list[tuple[str, str]]:
    counted, last = count_parameters(told.model), told.records[-1]
    memory = [r["memory_bytes"] for r in told.records if r["kind"] == "compiled" and r["memory_bytes"]]
    flops, seconds = told.last.get("flops"), last.get("seconds", 0.0)
    begun = any(record["kind"] in ("train", "final") for record in told.records)
    lines = [
        ("parameters", f"{counted.total:,}"),
        ("training FLOP", "" if flops is None else f"{flops:.3g}"),
        ("seconds of training", f"{seconds:.0f}"),
        ("parameters of time networks", f"{counted.time_network:,}"),
        ("ms per step", f"{milliseconds_per_step(told.records):.0f}" if begun else ""),
        ("MB of memory", f"{memory[-1] / 1e6:.0f}" if memory else ""),
    ]
    return [(name, value) for name, value in lines if value]


def _sample(told: Told, sample: Sample) -> Sequence[Item]:
    """A text that the model writes now."""
    how: dict[str, Any] = {"temperature": sample.temperature, "key": jax.random.key(sample.seed)}
    text = generate(told.model, sample.prompt, sample.tokens, tokenizer=told.tokenizer, **how)
    said = (
        f"{sample.tokens:,} tokens after {sample.prompt!r}, at temperature {sample.temperature:g}, "
        f"seed {sample.seed}; not chosen among several."
    )
    return [Heading("A sample of text"), Verbatim(text), Paragraph(said)]
