"""Going on where a run stopped: the newest good checkpoint, if it is of the same run and data."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax

from qkvflow import plugins
from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.history import moved_run
from qkvflow.config.yaml_files import recorded_run
from qkvflow.data import (
    TokenDataset,
    Tokenizer,
    coverage_note,
    default_cache_dir,
    eval_windows,
    load_corpus,
    make_tokenizer,
    prepare,
    windows_per_epoch,
)
from qkvflow.files import FileError, expanded
from qkvflow.models import LanguageModel, build_model
from qkvflow.models.paths import Arrays, arrays_of
from qkvflow.models.storage import check_model, read_about, shape_problems
from qkvflow.train.checkpoints import RECORD, newest_good, read_record
from qkvflow.train.run_files import (
    checkpoint_paths,
    find_models,
    load_model,
    model_directories,
    read_tokenizer,
)
from qkvflow.train.start import starting_model, starting_tokenizer

FREE = (
    *("eval_every", "save_every", "keep", "log_every", "trackers", "plugins", "least_coverage"),
    "start.checkpoint",
)
"""Fields of a run that may change between two starts: they do not touch the result.

A base or a plugin may lie elsewhere: its digest says whether it is the same.
"""
MOST = 8
"""Settings that differ which a sentence names."""


@dataclass(frozen=True)
class Saved:
    """A good checkpoint of a run, not yet read."""

    path: Path
    record: dict[str, Any]
    tokenizer: Tokenizer
    problems: tuple[str, ...]
    """What is wrong with newer checkpoints."""


def stage_of(run: RunConfig, steps: int) -> RunConfig | None:
    """The run that a continued one was when it ended after so many steps; None: it never did."""
    if steps not in run.continued:
        return None
    return replace(run, steps=steps, continued=run.continued[: run.continued.index(steps)])


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
    tokenizer = check_same_run(path, there, stage_of(run, there.steps) or run)
    return Saved(path, record, tokenizer, tuple(problems))


def final_damage(out: Path) -> str | None:
    """What is wrong with the files of a trained model; None where they are whole, or there are none."""
    if not (out / "final").is_dir():
        return None
    try:
        for directory in model_directories(out / "final", recorded_run(out / "run.yaml")):
            check_model(directory)
    except (ConfigError, FileError) as error:
        return str(error)
    return None


def is_finished(out: Path, run: RunConfig) -> bool:
    """Whether a directory holds the trained model of this run, whose files are whole.

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


def find_run(path: str | os.PathLike[str]) -> RunConfig | None:
    """The run that a model is of; None of one that was imported or exported, which does not say."""
    directory = find_models(expanded(path))[0].resolve()
    for place in (directory, directory.parent):  # of several seeds, models lie one deeper
        if (place / RECORD).is_file():
            record = read_record(place)
            return RunConfig.from_dict(moved_run(record["run"]))
        if place.name == "final" and (place.parent / "run.yaml").is_file():
            return recorded_run(place.parent / "run.yaml")
    return None


def initial_model(path: str | os.PathLike[str]) -> LanguageModel | None:
    """The model as it was before its run began; None of one that was imported or exported.

    Fresh weights are a function of the run's seed, and those of a base are read again.

    Raises:
        FileError: the base of a run is missing, or another one than the run began with.
    """
    run = find_run(path)
    if run is None:
        return None
    directory = find_models(expanded(path))[0].resolve()
    named = directory.name.removeprefix("seed-") if run.seeds > 1 else ""
    seed = int(named) if named.isdigit() else run.seed
    if run.start is not None:
        return starting_model(run, seed)
    config = load_model(directory).config
    return eqx.filter_jit(build_model)(run.model, config, key=jax.random.key(seed))


def text_digest(path: str | os.PathLike[str]) -> str | None:
    """Of the text that a model was trained on; None where no checkpoint of its run is left."""
    directory = find_models(expanded(path))[0].resolve()
    near = (directory, directory.parent)  # of several seeds, models lie one deeper
    beside = (step for place in near for step in checkpoint_paths(place.parent / "checkpoints"))
    for place in (*near, *beside):
        with suppress(FileError):
            return str(read_record(place)["data_digest"])
    return None


def own_text(
    checkpoint: str | os.PathLike[str],
    data: str | None,
    documents: int | Literal["run"] | None,
) -> tuple[str, int | None]:
    """The text for a model and how many documents of it; what is not named is that of its run.

    Raises:
        ConfigError: no text is named, and nothing says which one the model was trained on.
    """
    if data is not None and documents != "run":
        return data, documents
    run = find_run(checkpoint)
    if data is None and run is None:
        problem = f"nothing says which text {checkpoint} was trained on; name one with --data."
        raise ConfigError("There is no text:", [problem])
    text = data if run is None or data is not None else run.data
    assert text is not None
    if documents != "run":
        return text, documents
    return text, (run if run is not None and run.data == text else RunConfig()).documents


def check_same_run(path: Path, there: RunConfig, here: RunConfig) -> Tokenizer:
    """Refuse to go on with another model, text or schedule; the tokenizer that the run began with."""
    tokenizer = read_tokenizer(model_directories(path, there)[0])
    problems = _differences(there, here)
    if problems:
        size = tokenizer.vocab_size
        problems += shape_problems(_shapes(there, size), _shapes(here, size))
        raise FileError(
            f"{path} is of another run: {'; '.join(problems)}. Give the settings it was begun with"
            f"{_kept_settings(path)}, or another directory with --out."
        )
    return tokenizer


def _differences(there: RunConfig, here: RunConfig) -> list[str]:
    """The settings that differ and may not, the model first; some, and how many more."""
    old, new = _flat(there.to_dict()), _flat(here.to_dict())
    names = [
        name
        for name in sorted(old.keys() | new.keys(), key=lambda name: (name != "model", name))
        if not {name, name.split(".")[0]} & {*FREE} and old.get(name) != new.get(name)
    ]
    problems = [_difference(name, old, new) for name in names]
    more = [f"and {len(names) - MOST} more settings"] if len(names) > MOST else []
    return problems[:MOST] + more


def _difference(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    if name == "start.digest" and {name} <= old.keys() & new.keys():
        bases = [f"{run['start.checkpoint']} (digest {run[name][:12]})" for run in (old, new)]
        return f"its base is {bases[0]} there and {bases[1]} here"
    return f"{name} is {old.get(name)!r} there and {new.get(name)!r} here"


def _kept_settings(path: Path) -> str:
    """Where the settings of the run that something belongs to can be read."""
    files = (place / "run.yaml" for place in path.parents)
    return next((f", which are in {file}" for file in files if file.is_file()), "")


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
        DataError: the text cannot be used, is too short, there is no such tokenizer, or it loses
            too much of the text.
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
    coverage_note(dataset, run.least_coverage)  # refuses a tokenizer that loses too much
    windows_per_epoch(len(dataset["train"].ids), run.length)  # refuses a text without a window
    eval_windows(dataset["valid"].ids, run.length, run.batch_size)  # or without a target
    return dataset
