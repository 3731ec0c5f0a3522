"""A fine-tuning from end to end: a training run that begins with a base, and what is kept of it."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qkvflow.config import RunConfig
from qkvflow.config.strict import matches
from qkvflow.files import FileError, expanded, read_json, set_aside, write_json
from qkvflow.finetune.adapters import check_adapter, save_adapter
from qkvflow.finetune.config import FinetuneConfig, finetuning_run
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.models.paths import arrays_of
from qkvflow.progress import progress
from qkvflow.train import Outcome, Sink, evaluate, load_model, read_metrics, train
from qkvflow.train.evaluation import count_windows
from qkvflow.train.resume import open_data
from qkvflow.train.start import starting_model, trained_paths


@dataclass(frozen=True)
class Finetuned:
    """What a fine-tuning came to; losses are nats per token on the whole valid split."""

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


def finetune(config: FinetuneConfig, out: str | Path, sinks: Sequence[Sink] | None = None) -> Finetuned:
    """Fine-tune as `config` says, in the directory `out`; go on where it stopped.

    At the end `out/final` holds the whole model, `out/adapter` what was trained if that is not all,
    and `out/finetune.json` the losses before and after.

    Raises:
        ConfigError, DataError, FileError: something cannot be used; nothing was begun.
        TrainingError: the loss was not finite for several steps in a row.

    Examples:
        finetune(FinetuneConfig(checkpoint="runs/base", method="lora", data="wikitext-2"), "runs/lora")
    """
    out = expanded(out)
    run = finetuning_run(config)
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


def _keep_adapter(run: RunConfig, model: LanguageModel, out: Path) -> Path | None:
    """Where the trained arrays are apart; they are written if they are not there, or damaged."""
    assert run.start is not None
    if run.start.train == "all":
        return None
    place = out / "adapter"
    if place.is_dir():
        try:
            check_adapter(place)
        except FileError as error:
            warnings.warn(f"{error} The adapter is written again.", stacklevel=3)
            set_aside(place)
    return place if place.is_dir() else save_adapter(model, run.start, place)


def _losses(run: RunConfig, out: Path) -> dict[str, float]:
    """The losses before and after; the first is computed once and kept."""
    path = out / "finetune.json"
    if not path.is_file():
        size = run.batch_size // run.accumulate
        split = open_data(run)["valid"]
        base, windows = starting_model(run, run.seed), count_windows(split, run.length)
        with progress("evaluating the base", total=windows) as advance:
            before = evaluate(base, split, length=run.length, batch_size=size, advance=advance)
        content = {"before": before.loss, "after": _final_loss(out), "tokens": before.tokens}
        write_json(path, {**content, "start": asdict(run.start) if run.start else None})
    content = read_json(path)
    losses = [content.get(name) if isinstance(content, dict) else None for name in ("before", "after")]
    if not matches(tuple(losses), tuple[float, float]):
        raise FileError(f"{path} holds no losses before and after. Remove it and run again.")
    return content


def _final_loss(out: Path) -> float:
    path = out / "metrics.jsonl"
    losses = [record["loss"] for record in read_metrics(path) if record["kind"] == "final"]
    if not losses:
        raise FileError(
            f"{path} has lost the evaluation at the end. Remove {out / 'final'} and run again: no step "
            "is repeated if the last checkpoint is there."
        )
    return losses[-1]
