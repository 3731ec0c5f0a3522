"""A fine-tuning from end to end: a training run that begins with a base, and what is kept of it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from qkvflow.config import RunConfig
from qkvflow.data import CharTokenizer, DataError, TokenDataset
from qkvflow.files import read_json, write_json
from qkvflow.finetune.adapters import save_adapter
from qkvflow.finetune.config import FinetuneConfig, finetuning_run
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.models.paths import arrays_of
from qkvflow.train import Outcome, Sink, evaluate, load_model, read_metrics, train
from qkvflow.train.resume import open_data
from qkvflow.train.start import starting_model, trained_paths

MOST_UNKNOWN = 0.5
"""Share of unknown characters from which on a text says nothing to a model."""


@dataclass(frozen=True)
class Finetuned:
    """What a fine-tuning came to; losses are nats a token on the whole valid split."""

    outcome: Outcome
    before: float = math.nan
    after: float = math.nan
    trained: int = 0
    """Parameters that were trained."""
    parameters: int = 0
    """All of them."""
    adapter: Path | None = None
    """Where the trained arrays are apart; None where these are all."""
    adapter_bytes: int = 0


def finetune(config: FinetuneConfig, out: str | Path, sinks: Sequence[Sink] = ()) -> Finetuned:
    """Fine-tune as `config` says, in the directory `out`; go on where it stopped.

    At the end `out/final` holds the whole model, `out/adapter` what was trained if that is not all,
    and `out/finetune.json` the losses before and after.

    Raises:
        ConfigError, DataError, FileError: something cannot be used; nothing was begun.
        TrainingError: the loss was not finite for several steps in a row.

    Example:
        finetune(FinetuneConfig(checkpoint="runs/base", method="lora", data="wikitext-2"), "runs/lora")
    """
    out = Path(out).expanduser()
    run = finetuning_run(config)
    note = unknown_characters(open_data(run))
    for sink in sinks if note else ():
        sink.write({"kind": "note", "step": 0, "text": note})
    outcome = train(run, out, sinks)
    if not outcome.finished:
        return Finetuned(outcome)
    model = load_model(out / "final")
    adapter = _keep_adapter(run, model, out)
    arrays = arrays_of(model)
    losses = _losses(run, out)
    return Finetuned(
        outcome,
        losses["before"],
        losses["after"],
        sum(arrays[path].size for path in trained_paths(model, run.start)),
        count_parameters(model).total,
        adapter,
        0 if adapter is None else sum(path.stat().st_size for path in adapter.iterdir()),
    )


def unknown_characters(data: TokenDataset) -> str | None:
    """A sentence about the characters of a text that a base has never seen; None where it knows all.

    Raises:
        DataError: these are most of the text.
    """
    if not isinstance(data.tokenizer, CharTokenizer):
        return None
    ids = data["train"].ids
    count = int(np.count_nonzero(np.asarray(ids) == 0))
    if not count:
        return None
    share = count / len(ids)
    what = f"{count:,} of the {len(ids):,} characters of {data.corpus} ({share:.2%}) are unknown to the"
    if share > MOST_UNKNOWN:
        raise DataError(
            f"{what} tokenizer of the base, which knows {len(data.tokenizer.symbols)}. Take a base "
            "that was trained with the tokenizer byte, to which nothing is unknown."
        )
    return f"{what} tokenizer of the base; they are all the same to the model."


def _keep_adapter(run: RunConfig, model: LanguageModel, out: Path) -> Path | None:
    """Where the trained arrays are apart; they are written if they are not there yet."""
    assert run.start is not None
    if run.start.train == "all":
        return None
    place = out / "adapter"
    return place if place.is_dir() else save_adapter(model, run.start, place)


def _losses(run: RunConfig, out: Path) -> dict[str, float]:
    """The losses before and after; the first is computed once and kept."""
    path = out / "finetune.json"
    if not path.is_file():
        size = run.batch_size // run.accumulate
        split = open_data(run)["valid"]
        before = evaluate(starting_model(run, run.seed), split, length=run.length, batch_size=size)
        final = [r for r in read_metrics(out / "metrics.jsonl") if r["kind"] == "final"][-1]
        content = {"before": before.loss, "after": final["loss"], "tokens": before.tokens}
        write_json(path, {**content, "start": asdict(run.start) if run.start else None})
    return read_json(path)
