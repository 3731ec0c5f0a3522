"""Measure the loss of a trained model on a whole split of a text, or its results on tasks.

    qkvflow evaluate --checkpoint runs/first --split test
    qkvflow evaluate --checkpoint models/exported --data wikitext-2
    qkvflow evaluate --checkpoint runs/first --tasks lambada_openai,hellaswag --shots 5 --depth 8

By default the text is that of the model's own training run; every token is predicted once.
For question-answer corpora (hops, addition) a second table shows the share of correct answers; if the
run was trained on answers only, the loss is also on answers only.
--ngrams 3 adds baselines: n-gram models of order 1 to 3, fitted on the train split of the same text
with the same tokenizer.

--tasks runs lm-evaluation-harness (pip install -e ".[lm-eval]"), which loads the data of the tasks.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

from qkvflow.analysis.depth_curve import depth_curve, depth_table, draw_depth_curve
from qkvflow.analysis.early import early_curve, early_table
from qkvflow.config import ConfigError
from qkvflow.config.strict import Bound, Count, NotNegativeInt, Share, bound_problems
from qkvflow.data import (
    Accuracy,
    NGramModel,
    TokenDataset,
    TokenSplit,
    coverage_note,
    default_cache_dir,
    load_corpus,
    prepare,
)
from qkvflow.harness.tasks import results_table, run_tasks
from qkvflow.models import LanguageModel, unroll
from qkvflow.progress import elapsed, progress
from qkvflow.report.table import Table, to_terminal
from qkvflow.train import Evaluation, evaluate, load_model, read_tokenizer
from qkvflow.train.evaluation import count_windows
from qkvflow.train.resume import find_run, own_text, text_digest


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow evaluate`."""

    checkpoint: Path
    """Directory of a run, of a checkpoint, or of an exported model."""
    data: str | None = None
    """Text: a corpus (embedded, wikitext-2, ...) or a path; None: that of the model's training run."""
    documents: Count | Literal["run"] | None = "run"
    """Number of documents to stream from hf:OWNER/NAME; run: as many as in the model's training run;
    None: all."""
    least_coverage: Share = 0.99
    """Minimum share of the text's bytes that the tokenizer must reproduce; below it, the text is
    refused."""
    split: Literal["train", "valid", "test"] = "valid"
    """Split to evaluate on."""
    depth: int | None = None
    """Number of layers at which the weights are sampled; None: the model's own depth."""
    depths: tuple[int, ...] = ()
    """Numbers of layers to compare: one row per depth, with loss, operations and time."""
    unit_steps: bool = False
    """Use step size 1 at every depth, instead of keeping the sum of all steps the same."""
    stop_early: tuple[float, ...] = ()
    """Early-exit thresholds to compare, 0 to 1: one row per threshold, with loss and mean number of
    layers. A token exits once a layer changes its prediction by at most the threshold, in total
    variation distance."""
    figure: Path | None = None
    """PNG or PDF file for a plot of loss against depth; needs --depths."""
    batch_size: Count = 8
    """Windows of text per batch; smaller values need less memory."""
    tokens: Count | None = None
    """Number of evenly spaced tokens to evaluate on; None: the whole split."""
    ngrams: Annotated[int, Bound("0 to 6", 0, 7)] = 0
    """Highest order of the n-gram baselines to fit and show, 0 to 6; 0: no baselines."""
    tasks: str | None = None
    """lm-evaluation-harness tasks to run instead of computing a loss, separated by commas."""
    task_folder: Path | None = None
    """Directory of YAML files that define further lm-evaluation-harness tasks."""
    shots: NotNegativeInt | None = None
    """Number of few-shot examples per question, with --tasks; None: the task's default."""
    examples: Count | None = None
    """Number of questions per task, with --tasks; None: all."""


def run(options: Options) -> None:
    """Print a table with the loss in nats per token and bits per byte."""
    problems = option_problems(options)
    if problems:
        raise ConfigError("The evaluation cannot be made:", problems)
    if options.tasks is not None:
        show_tasks(options)
        return
    model = load_model(options.checkpoint)
    tokenizer = read_tokenizer(options.checkpoint)
    data, documents = own_text(options.checkpoint, options.data, options.documents)
    dataset = prepare(load_corpus(data, limit=documents), tokenizer, default_cache_dir())
    notes = [
        coverage_note(dataset, options.least_coverage, [options.split]),
        other_text(options, data, dataset.digest),
    ]
    if options.stop_early:
        show_early(at_depth_of(model, options), dataset[options.split], data, options)
    elif options.depths:
        show_depths(model, dataset[options.split], data, options)
    else:
        show_one(model, dataset, data, options)
    for note in filter(None, notes):
        print(note)


def show_one(model: LanguageModel, dataset: TokenDataset, data: str, options: Options) -> None:
    """Print a table with the loss at one depth, and those of n-grams."""
    split = dataset[options.split]
    model = at_depth_of(model, options)
    result = evaluated(model, split, options)
    part = "whole" if result.whole else "a part of the"
    of = ", answers only" * is_of_answers(split, options)
    print(f"{data}, {part} {options.split} split{of}, depth {model.config.num_layers}")
    heads = ("", "tokens", "nats/token", "standard error", "bits/byte")
    own, bits = f"{result.standard_error:.4f}", f"{result.bits_per_byte:.4f}"
    rows = [(str(options.checkpoint), f"{result.tokens:,}", f"{result.loss:.4f}", own, bits)]
    for order, loss in enumerate(ngram_losses(dataset, options), start=1):
        bits = f"{split.bits_per_byte(loss):.4f}"
        rows += [(f"n-gram of order {order}", f"{len(split.ids):,}", f"{loss:.4f}", "", bits)]
    Console().print(to_terminal(Table(heads, tuple(rows))))
    if result.accuracy is not None:
        Console().print(to_terminal(accuracy_table(result.accuracy)))


def accuracy_table(accuracy: Accuracy) -> Table:
    """How many answers are right, all of them and by how long their questions are."""
    rows = [("all answers", f"{accuracy.whole:.1%}", "")]
    rows += [
        (f"{count} {accuracy.counted}", f"{share:.1%}", f"{accuracy.guess[count]:.1%}")
        for count, share in accuracy.by_count.items()
    ]
    rows += [("tokens of answers", f"{accuracy.tokens:.1%}", "")]
    note = (
        f"{accuracy.answers:,} answers; an answer is right if all of its tokens are. guess: the best "
        "accuracy possible from the question alone."
    )
    return Table(("", "right", "guess"), tuple(rows), "Accuracy", note)


def is_of_answers(split: TokenSplit, options: Options) -> bool:
    """Whether a model was trained on answers only, so that its loss on other tokens says nothing."""
    run = None if split.answers is None else find_run(options.checkpoint)
    return run is not None and run.answers_only


def show_tasks(options: Options) -> None:
    """Print a table with a row for every metric of every task."""
    assert options.tasks is not None
    with elapsed("running the tasks"):
        results = run_tasks(
            options.checkpoint,
            options.tasks.split(","),
            shots=options.shots,
            folder=options.task_folder,
            limit=options.examples,
            depth=options.depth,
            unit_steps=options.unit_steps,
            batch_size=options.batch_size,
        )
    layers = "its own depth" if options.depth is None else f"depth {options.depth}"
    Console().print(to_terminal(results_table(results, f"{options.checkpoint} at {layers}")))


def at_depth_of(model: LanguageModel, options: Options) -> LanguageModel:
    """The model at the depth that the options name, if they do."""
    if options.depth is None:
        return model
    with elapsed(f"sampling the weights at {options.depth} layers"):
        return unroll(model, options.depth, unit_steps=options.unit_steps)


def option_problems(options: Options) -> list[str]:
    """What does not go together."""
    problems = bound_problems(options)
    if options.depths and (options.depth is not None or options.ngrams):
        problems.append("depths: leave out --depth and --ngrams, which apply to a single depth.")
    if options.stop_early and (options.depths or options.ngrams):
        problems.append("stop_early: leave out --depths and --ngrams; it prints a table of its own.")
    if options.figure is not None and not options.depths:
        problems.append("figure: it plots the loss against depth, so it needs --depths.")
    if options.figure is not None and options.figure.suffix not in (".png", ".pdf"):
        problems.append(f"figure is {options.figure}; expected a file name ending in .png or .pdf.")
    given = {"shots": options.shots, "examples": options.examples, "task_folder": options.task_folder}
    if options.tasks is None:
        problems += [f"{name}: needs --tasks, to which it applies." for name, of in given.items() if of]
    elif options.data is not None or any(
        (options.depths, options.stop_early, options.ngrams, options.tokens)
    ):
        problems.append(
            "tasks: leave out --data, --depths, --stop-early, --ngrams and --tokens, which need a text."
        )
    return problems


def show_depths(model: LanguageModel, split: TokenSplit, data: str, options: Options) -> None:
    """Print a table with a row for every depth, and draw it."""
    length = model.config.max_position_embeddings
    windows = len(options.depths) * count_windows(split, length, options.tokens)
    with progress("evaluating", total=windows) as advance:
        points = depth_curve(
            model,
            split,
            options.depths,
            length=length,
            batch_size=options.batch_size,
            tokens=options.tokens,
            unit_steps=options.unit_steps,
            answers_only=is_of_answers(split, options),
            advance=advance,
        )
    seen = points[0].evaluation
    part, layers = "all " if seen.whole else "", model.config.num_layers
    text = f"{data}, {part}{seen.tokens:,} tokens of the {options.split} split"
    print(f"{text}; the model has {layers} layers")
    Console().print(to_terminal(depth_table(points)))
    if options.figure is not None:
        name = model.preset.name if model.preset else ""
        draw_depth_curve(points, layers, options.figure, name)
        print(f"The figure is {options.figure}.")


def show_early(model: LanguageModel, split: TokenSplit, data: str, options: Options) -> None:
    """Print a table with a row for every bound."""
    length = model.config.max_position_embeddings
    windows = len(options.stop_early) * count_windows(split, length, options.tokens)
    with progress("evaluating", total=windows) as advance:
        points = early_curve(
            model,
            split,
            options.stop_early,
            length=length,
            batch_size=options.batch_size,
            tokens=options.tokens,
            advance=advance,
        )
    seen = points[0].evaluation
    part = "all " if seen.whole else ""
    text = f"{data}, {part}{seen.tokens:,} tokens of the {options.split} split"
    print(f"{text}; the model has {model.config.num_layers} layers")
    Console().print(to_terminal(early_table(points)))


def other_text(options: Options, data: str, digest: str) -> str | None:
    """A sentence where the text of the model's own run is no longer what it was trained on."""
    is_own = options.data is None and options.documents == "run"
    known = text_digest(options.checkpoint) if is_own else None
    if known in (None, digest):
        return None
    return (
        f"This is not the text that the model was trained on: the digest of {data} was {known:.12} and "
        f"is now {digest:.12}. It has changed or moved; name the right text with --data."
    )


def evaluated(model: LanguageModel, split: TokenSplit, options: Options) -> Evaluation:
    """The loss on a split, with a bar once the program is compiled."""
    length, layers = model.config.max_position_embeddings, model.config.num_layers
    windows = count_windows(split, length, options.tokens)
    with progress("evaluating", total=windows) as advance, ExitStack() as first:
        first.enter_context(elapsed(f"compiling, then evaluating with {layers} layers"))

        def next_batch(amount: int) -> None:
            first.close()
            advance(amount)

        return evaluate(
            model,
            split,
            length=length,
            batch_size=options.batch_size,
            tokens=options.tokens,
            advance=next_batch,
            answers_only=is_of_answers(split, options),
        )


def ngram_losses(dataset: TokenDataset, options: Options) -> list[float]:
    """Nats per token of n-grams of order 1, 2, ... on the whole split."""
    if not options.ngrams:
        return []
    size = dataset.tokenizer.vocab_size
    model = NGramModel.fit(dataset["train"].ids, vocab_size=size, order=options.ngrams)
    return model.nats_by_order(dataset[options.split].ids)
