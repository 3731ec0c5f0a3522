"""What n-grams of a text reach: what a model of the same text is measured by."""

from pathlib import Path

from qkvflow.data import NGramModel, TokenDataset
from qkvflow.files import read_json, write_json

ORDERS = 6


def ngram_floors(data: TokenDataset, out: Path) -> dict[str, float]:
    """The loss of n-grams of order 1 to 6 on the valid split, by name; kept in OUT/floors.json."""
    path = out / "floors.json"
    if path.is_file():
        kept = read_json(path)
        if kept["data_digest"] == data.digest:
            return kept["valid"]
    size = data.tokenizer.vocab_size
    model = NGramModel.fit(data["train"].ids, vocab_size=size, order=ORDERS)
    losses = model.nats_by_order(data["valid"].ids)
    floors = {f"{order}-gram": loss for order, loss in enumerate(losses, start=1)}
    write_json(path, {"data_digest": data.digest, "valid": floors})
    return floors
