"""The tokens that a run reads."""

from qkvflow.config import RunConfig
from qkvflow.data import (
    Corpus,
    TokenDataset,
    Tokenizer,
    default_cache_dir,
    eval_windows,
    load_corpus,
    make_tokenizer,
    prepare,
    windows_per_epoch,
)


def open_corpus(run: RunConfig) -> Corpus:
    """The text of a run."""
    return load_corpus(run.data, limit=run.documents)


def open_tokens(run: RunConfig, corpus: Corpus, tokenizer: Tokenizer | None = None) -> TokenDataset:
    """The tokens of a text, made if need be, and long enough for a window; by default as the run says.

    Raises:
        DataError: the text is too short, or there is no such tokenizer.
    """
    tokenizer = tokenizer or make_tokenizer(run.tokenizer, corpus, run.bpe_size)
    dataset = prepare(corpus, tokenizer, default_cache_dir())
    windows_per_epoch(len(dataset["train"].ids), run.length)
    next(eval_windows(dataset["valid"].ids, run.length, run.batch_size))
    return dataset
