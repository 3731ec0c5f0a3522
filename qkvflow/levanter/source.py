"""qkvflow's corpora as data of Levanter's configs, beside its own files and data sets.

    data:
      components:
        text:
          source: {type: qkvflow, corpus: embedded}

A row is a document; train is the train split, validation the valid split.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from levanter.data.sharded_datasource import ShardedDataSource
from levanter.data.text.datasets import LmDatasetSourceConfigBase

from qkvflow.data import load_corpus
from qkvflow.data.corpus import Corpus

SPLITS = {"train": "train", "validation": "valid"}
"""What Levanter calls the splits."""


class Documents(ShardedDataSource[dict]):
    """The documents of one split of a corpus, as one shard."""

    def __init__(self, corpus: Corpus, split: str):
        self.documents = corpus[SPLITS[split]].documents

    @property
    def shard_names(self) -> Sequence[str]:
        """There is one."""
        return ["documents"]

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[dict]:
        """The documents from one of them on."""
        for document in self.documents[row:]:
            yield {"text": "".join(document.chunks())}


@LmDatasetSourceConfigBase.register_subclass("qkvflow")
@dataclass(frozen=True)
class CorpusSource(LmDatasetSourceConfigBase):
    """A corpus by the name that `qkvflow train --data` takes, or a path to text."""

    corpus: str = "embedded"
    """embedded, wikitext-2, wikitext-103, markov, hops, addition, hf:OWNER/NAME, or a path."""
    documents: int | None = None
    """Documents that are streamed of hf:OWNER/NAME; None takes all."""

    def get_shard_source(self, split: str) -> Documents:
        """The documents of a split."""
        return Documents(load_corpus(self.corpus, limit=self.documents), split)
