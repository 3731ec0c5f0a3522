"""Going on where a run stopped: the newest good checkpoint, if it is of the same run and data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from qkvflow import plugins
from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.history import moved_run
from qkvflow.config.yaml_files import recorded_run
from qkvflow.data import (
    TokenDataset,
    Tokenizer,
    default_cache_dir,
    eval_windows,
    load_corpus,
    make_tokenizer,
    prepare,
    windows_per_epoch,
)
from qkvflow.files import FileError
from qkvflow.models import build_model
from qkvflow.models.paths import Arrays, arrays_of
from qkvflow.models.storage import read_about, shape_problems
from qkvflow.train.checkpoints import newest_good
from qkvflow.train.run_files import model_directories, read_tokenizer
from qkvflow.train.start import starting_tokenizer

FREE = ("eval_every", "save_every", "keep", "log_every", "trackers", "plugins", "start.checkpoint")
"""Fields of a run that may change between two starts: they do not touch the result.

A base or a plugin may lie elsewhere: its digest says whether it is the same.
"""


@dataclass(frozen=True)
class Saved:
    """A good checkpoint of a run, not yet read."""

    path: Path
    record: dict[str, Any]
    tokenizer: Tokenizer
    problems: tuple[str, ...]
    """What is wrong with newer checkpoints."""


def find_saved(out: Path, run: RunConfig) -> Saved | None:
    """The newest good checkpoint of this run in its directory.

    Raises:
        FileError: no checkpoint is good, or the newest good one is of another run.
    """
    path, record, problems = newest_good(out / "checkpoints")
    if path is None:
        return None
    plugins.check_same(str(path), record.get("plugins", {}))
    try:
        there = RunConfig.from_dict(moved_run(record["run"]))
    except ConfigError as error:
        raise FileError(f"{path} holds a run that this version cannot read: {error}") from error
    return Saved(path, record, check_same_run(path, there, run), tuple(problems))


def is_finished(out: Path, run: RunConfig) -> bool:
    """Whether a directory holds the trained model of this run.

    Raises:
        FileError: it holds that of another run.
    """
    if not (out / "final").is_dir():
        return False
    there = recorded_run(out / "run.yaml")
    check_same_run(out / "final", there, run)
    first = model_directories(out / "final", there)[0]
    plugins.check_same(str(out / "final"), read_about(first)["plugins"])
    return True


def check_same_run(path: Path, there: RunConfig, here: RunConfig) -> Tokenizer:
    """Refuse to go on with another model, text or schedule; the tokenizer that the run began with."""
    tokenizer = read_tokenizer(model_directories(path, there)[0])
    old, new = _flat(there.to_dict()), _flat(here.to_dict())
    problems = [
        f"{name} is {old.get(name)!r} there and {new.get(name)!r} here"
        for name in sorted(old.keys() | new.keys())
        if not {name, name.split(".")[0]} & {*FREE} and old.get(name) != new.get(name)
    ]
    if problems:
        size = tokenizer.vocab_size
        problems += shape_problems(_shapes(there, size), _shapes(here, size))
        raise FileError(
            f"{path} is of another run: {'; '.join(problems)}. Give the settings it was begun with, "
            "or another directory with --out."
        )
    return tokenizer


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _shapes(run: RunConfig, vocab_size: int) -> Arrays:
    config = run.model_config(vocab_size)
    return arrays_of(eqx.filter_eval_shape(build_model, run.model, config, key=jax.random.key(0)))


def open_data(run: RunConfig, saved: Saved | None = None) -> TokenDataset:
    """The tokens of a run; of one that goes on or has a start, with the tokenizer it began with.

    Raises:
        DataError: the text cannot be used, is too short, or there is no such tokenizer.
        FileError: it has changed since the run began.
    """
    corpus = load_corpus(run.data, limit=run.documents)
    if saved is not None and corpus.digest != saved.record["data_digest"]:
        raise FileError(
            f"The data {run.data} has changed since this run began: its digest was "
            f"{saved.record['data_digest'][:12]} and is {corpus.digest[:12]}. Restore the text, or "
            "begin again in another directory with --out."
        )
    begun = saved.tokenizer if saved else starting_tokenizer(run)
    tokenizer = begun or make_tokenizer(run.tokenizer, corpus, run.bpe_size)
    dataset = prepare(corpus, tokenizer, default_cache_dir())
    windows_per_epoch(len(dataset["train"].ids), run.length)  # refuses a text without a window
    next(eval_windows(dataset["valid"].ids, run.length, run.batch_size))
    return dataset
