"""Look inside a trained model: spectra, Lyapunov exponents, trajectories, modulation, capacity.

    qkvflow analyze all --checkpoint runs/first --out analysis
    qkvflow analyze lyapunov --checkpoint runs/first --text "The river is" --data wikitext-2
    qkvflow analyze spectra --checkpoint runs/first --circuits qk --times 32

OUT/analysis.html shows everything and is self-contained; OUT/figures holds PNGs and PDFs, OUT/*.npz the
arrays, OUT/*.json the main numbers. One text is analyzed token by token; --data adds a sample from a
corpus, with intervals.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.console import Console

from qkvflow.analysis import ANALYSES, Study, Subject, draw_windows
from qkvflow.analysis.flow import in_float32
from qkvflow.analysis.present import obstacle, present
from qkvflow.config import ConfigError
from qkvflow.config.strict import (
    LAYERS,
    SIZES,
    Bound,
    Count,
    NotNegativeInt,
    Share,
    Size,
    bound_problems,
)
from qkvflow.data import (
    TokenDataset,
    Tokenizer,
    coverage_note,
    default_cache_dir,
    load_corpus,
    prepare,
)
from qkvflow.models import LanguageModel
from qkvflow.nn.time_embed import layer_times
from qkvflow.progress import elapsed
from qkvflow.report.table import Table, to_terminal
from qkvflow.train import load_model, read_tokenizer
from qkvflow.train.resume import initial_model, own_text

TEXT = "A layer is a time, and its weights are a curve over depth."
LONGEST_WINDOW = 128


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow analyze`."""

    what: tyro.conf.Positional[str]
    """Analysis to run: lyapunov, trajectory, spectra, modulation, capacity, the name of one from a
    plugin, or all."""
    checkpoint: Path
    """Directory of a run, of a checkpoint, or of an exported model."""
    out: Path = Path("analysis")
    """Output directory; files from an earlier analysis are overwritten."""
    text: str | None = None
    """Text to analyze token by token; None: a built-in sentence, cut to the model's maximum sequence
    length."""
    position: int = -1
    """Position of the token whose final state the sensitivity is of; negative: from the end."""
    data: str | None = None
    """Text to sample windows from: a corpus (embedded, wikitext-2, ...) or a path; None: no sample."""
    documents: Count | Literal["run"] | None = "run"
    """Number of documents to stream from hf:OWNER/NAME; run: as many as in the model's training run;
    None: all."""
    least_coverage: Share = 0.99
    """Minimum share of the text's bytes that the tokenizer must reproduce; below it, the text is
    refused."""
    split: Literal["train", "valid", "test"] = "valid"
    """Split of the corpus to sample from."""
    windows: Count = 16
    """Number of windows to sample from the corpus, at random and without overlap."""
    length: int | None = None
    """Tokens per window; None: the model's maximum sequence length, at most 128."""
    times: Annotated[int, Bound(f"at least 1, below {LAYERS:,}", 1, LAYERS)] | None = None
    """Number of evenly spaced depths at which weights are analyzed; None: one per layer."""
    circuits: tuple[Literal["qk", "ov", "mlp", "ssm"], ...] = ()
    """Circuits to compute spectra of; empty: all that the model has."""
    exponents: Size = 8
    """Number of leading Lyapunov exponents to compute for the sequence."""
    refine: NotNegativeInt = 8
    """Number of iterations that refine the Lyapunov exponents; the table shows by how much the last one
    changed them."""
    probes: Annotated[int, Bound(f"2 to {SIZES - 1:,}", 2, SIZES)] = 64
    """Number of random probe vectors to estimate the sensitivity with; the model's width is exact."""
    seed: NotNegativeInt = 0
    """Random seed for the sampled windows."""


def run(options: Options) -> None:
    """Study, draw, write, and print the main numbers."""
    with elapsed("reading the model"):
        model = in_float32(load_model(options.checkpoint))
        tokenizer = read_tokenizer(options.checkpoint)
    data = _open(options, tokenizer)
    subject = subject_of(options, model, tokenizer, data)
    if options.what in ("all", "capacity"):
        initial = initial_model(options.checkpoint)
        subject = replace(subject, initial=None if initial is None else in_float32(initial))
    names, notes = applicable(options.what, subject)
    notes = _unknown(options, tokenizer, data) + notes
    title = f"Analysis of {options.checkpoint.resolve().name}"
    page, studies = present(subject, names, options.out, tokenizer, title=title, notes=notes)
    console = Console()
    for name, study in studies.items():
        console.print(to_terminal(numbers_table(name, study)))
    for note in notes:
        console.print(note, style="yellow", highlight=False, markup=False)
    written = f"Written: {page}; figures, arrays and numbers are in the same directory."
    console.print(written, soft_wrap=True, markup=False)


def numbers_table(name: str, study: Study) -> Table:
    """The main numbers of an analysis."""
    return Table((name, ""), tuple(ANALYSES[name]().main_numbers(study)), words=frozenset({""}))


def applicable(what: str, subject: Subject) -> tuple[list[str], list[str]]:
    """The analyses to make, and a sentence for each of `all` that does not apply.

    Raises:
        ConfigError: the one analysis that was asked for does not apply, or there is none of that name.
    """
    found = {name: obstacle(name, subject) for name in (ANALYSES if what == "all" else [what])}
    if what != "all" and (problem := found[what]) is not None:
        raise problem
    notes = [
        f"{name} is left out: {' '.join(p.problems)}" for name, p in found.items() if p is not None
    ]
    return [name for name, problem in found.items() if problem is None], notes


def subject_of(
    options: Options, model: LanguageModel, tokenizer: Tokenizer, data: TokenDataset | None
) -> Subject:
    """What the options name, checked as a whole before any work."""
    longest = model.config.max_position_embeddings
    ids = np.asarray(tokenizer.encode(TEXT if options.text is None else options.text), np.int32)
    ids = ids[:longest] if options.text is None else ids
    problems = _text_problems(options, len(ids), longest) + bound_problems(options)
    if options.length is not None and not 2 <= options.length <= longest:
        problems.append(f"length is {options.length}; expected 2 to {longest}, the model's maximum.")
    if problems:
        raise ConfigError("The analysis cannot be made:", problems)
    return Subject(
        model=model,
        times=layer_times(options.times or model.config.num_layers).astype(np.float64),
        ids=ids,
        labels=tuple(tokenizer.decode([i]) for i in ids.tolist()),
        position=options.position % len(ids),
        windows=_windows(options, data, min(longest, LONGEST_WINDOW)),
        circuits=options.circuits or None,
        count=options.exponents,
        refine=options.refine,
        probes=options.probes,
    )


def _text_problems(options: Options, length: int, longest: int) -> list[str]:
    if length < 2:
        return [f"the text has {length} tokens; expected at least 2, to predict one from another."]
    if length > longest:
        return [
            f"the text has {length} tokens and the model takes {longest} (max_position_embeddings). "
            f"Shorten --text by {length - longest} tokens, or train with a longer --length."
        ]
    if not -length <= options.position < length:
        return [
            f"position is {options.position} in a text of {length} tokens; expected 0 to "
            f"{length - 1}, or {-length} to -1 to count from the end."
        ]
    return []


def _open(options: Options, tokenizer: Tokenizer) -> TokenDataset | None:
    """The corpus of which there is to be a sample."""
    if options.data is None:
        return None
    data, documents = own_text(options.checkpoint, options.data, options.documents)
    return prepare(load_corpus(data, limit=documents), tokenizer, default_cache_dir())


def _windows(options: Options, data: TokenDataset | None, length: int) -> np.ndarray | None:
    if data is None:
        return None
    ids = data[options.split].ids
    return draw_windows(ids, options.windows, options.length or length, options.seed)


def _unknown(options: Options, tokenizer: Tokenizer, data: TokenDataset | None) -> list[str]:
    """Sentences about what the tokenizer loses of the text and of the corpus."""
    text = options.text or ""
    lost = tokenizer.lost_bytes(text, tokenizer.encode(text))
    notes = [f"The tokenizer loses {lost} bytes of the text that it cannot encode."] if lost else []
    corpus = data and coverage_note(data, options.least_coverage, [options.split])
    return [*notes, corpus] if corpus else notes
