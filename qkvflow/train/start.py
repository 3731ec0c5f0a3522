"""Runs that begin with a trained model: what it is at the start, and which of its arrays change."""

import dataclasses
from fnmatch import fnmatchcase
from typing import Any, Literal

import equinox as eqx
import jax

from qkvflow.config import ConfigError, Gpt2Config, RunConfig, StartConfig
from qkvflow.config.variants import Adapter
from qkvflow.data import Tokenizer
from qkvflow.files import FileError
from qkvflow.models import LanguageModel, adapt, adapter_paths, unroll
from qkvflow.models.named import FLOW
from qkvflow.models.paths import Arrays, arrays_of
from qkvflow.models.storage import arrays_digest, check_shapes
from qkvflow.train.run_files import load_model, read_tokenizer


def starting_model(run: RunConfig, seed: int) -> LanguageModel:
    """The base of a run, sampled at its depth, with the fresh adapters of a seed.

    Raises:
        FileError: the base is missing or broken, or another one than the run began with.
    """
    start = run.start
    assert start is not None, "a run with fresh weights has no start"
    base = load_model(start.checkpoint)
    found = arrays_digest(arrays_of(base))
    if found != start.digest:
        raise FileError(
            f"{start.checkpoint} holds another model than this run begins with: the digest of its "
            f"arrays is {found[:12]}, expected {start.digest[:12]}. Restore it, or begin another run."
        )
    model = prepared(base, start.depth, run.architecture, seed)
    return dataclasses.replace(model, config=run.architecture)  # with the steps that the run has


def prepared(
    base: LanguageModel, depth: int | None, architecture: Gpt2Config, seed: int = 0
) -> LanguageModel:
    """A base at a depth, with the adapters that an architecture names."""
    model = base if depth is None else unroll(base, depth)
    if architecture.adapter is None or model.config.adapter is not None:
        return model
    return adapt(model, architecture.adapter, key=jax.random.key(seed))


def settings_of_start(
    checkpoint: str,
    depth: int | None,
    adapter: Adapter | None,
    train: Literal["all", "adapter", "embeddings_and_norms"],
    also: tuple[str, ...],
) -> dict[str, Any]:
    """The settings that a run takes from its base: model, tokenizer, architecture and start.

    Raises:
        FileError: the base is missing or broken.
        ConfigError: it has another adapter already, or has no such arrays to train.
    """
    base = load_model(checkpoint)
    if adapter is not None and base.config.adapter is not None and depth is None:
        problem = (
            f"{checkpoint} has adapters already. Name a depth, or make them part of its weights "
            f"with qkvflow export --depth {base.config.num_layers}."
        )
        raise ConfigError("The base cannot have another adapter:", [problem])
    architecture = dataclasses.replace(base.config, adapter=adapter)
    model = eqx.filter_eval_shape(prepared, base, depth, architecture)
    start = StartConfig(checkpoint, arrays_digest(arrays_of(base)), depth, train, also)
    trained_paths(model, start)
    return {
        "model": FLOW if model.preset is None else model.preset.name,
        "tokenizer": read_tokenizer(checkpoint).kind,
        "architecture": model.config,
        "start": start,
    }


def starting_arrays(run: RunConfig, model: LanguageModel) -> list[Arrays]:
    """The arrays at the start of every seed, which have the shapes of `model`."""
    assert run.start is not None, "a run with fresh weights has no start"
    found = [arrays_of(starting_model(run, seed)) for seed in run.all_seeds]
    check_shapes(found[0], arrays_of(model), run.start.checkpoint)
    return found


def starting_tokenizer(run: RunConfig) -> Tokenizer | None:
    """The tokenizer of the base, which new text has to be read with; None without a base."""
    if run.start is None:
        return None
    tokenizer = read_tokenizer(run.start.checkpoint)
    if tokenizer.vocab_size > run.architecture.vocab_size:
        raise FileError(
            f"{run.start.checkpoint} has a tokenizer with {tokenizer.vocab_size} ids and a model with "
            f"{run.architecture.vocab_size}; expected no more ids than the model has."
        )
    return tokenizer


def trained_paths(model: LanguageModel, start: StartConfig | None) -> tuple[str, ...]:
    """The arrays that a run changes, by path.

    Raises:
        ConfigError: a pattern matches no array, or there is no adapter to train.
    """
    table = model.parameters()
    paths = tuple(table)
    if start is None or start.train == "all":
        return paths
    if start.train == "adapter":
        chosen = set(adapter_paths(model))
    else:
        chosen = {path for path, found in table.items() if found.kind in ("embedding", "norm")}
    problems = [
        f"also: {pattern!r} matches no array; this model has {', '.join(paths)}."
        for pattern in start.also
        if not any(fnmatchcase(path, pattern) for path in paths)
    ]
    if start.train == "adapter" and not chosen:
        problems.append("train is 'adapter', and architecture.adapter is None; name one.")
    if problems:
        raise ConfigError("This run cannot choose what it trains:", problems)
    chosen |= {path for path in paths for pattern in start.also if fnmatchcase(path, pattern)}
    return tuple(path for path in paths if path in chosen)
