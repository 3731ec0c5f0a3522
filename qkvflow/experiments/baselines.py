"""What n-grams of a text reach: the baselines that a model of the same text is measured by."""

import dataclasses
from pathlib import Path
from typing import Any

from qkvflow.data import NGramModel, TokenDataset
from qkvflow.experiments.records import NGramBaselines, checked, reading
from qkvflow.experiments.store import loose_path, read_place
from qkvflow.files import write_json

ORDERS = 6
PLACE = "ngram_baselines"
"""Where they are kept."""


def ngram_baselines(data: TokenDataset, out: Path) -> NGramBaselines:
    """The loss of n-grams of order 1 to 6 on the valid split; kept with the experiment."""
    kept = read_baselines(out)
    if kept is not None and kept.data_digest == data.digest:
        return kept
    size = data.tokenizer.vocab_size
    model = NGramModel.fit(data["train"].ids, vocab_size=size, order=ORDERS)
    losses = model.nats_by_order(data["valid"].ids)
    valid = {f"{order}-gram": loss for order, loss in enumerate(losses, start=1)}
    found = NGramBaselines(data.digest, valid)
    write_json(loose_path(out, PLACE), dataclasses.asdict(found))
    return found


def read_baselines(out: Path) -> NGramBaselines | None:
    """Those of an experiment, if they are known."""
    entry = read_place(out, PLACE)
    if entry is None:
        return None
    return reading(_baselines, entry.content, entry.where, "a table of n-grams")


def _baselines(content: Any) -> NGramBaselines:
    return checked(NGramBaselines(**content))
