"""Byte-pair encoding through the `tokenizers` package, and any tokenizer by its name or path."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qkvflow.data.corpus import Corpus
from qkvflow.data.errors import DataError
from qkvflow.data.text import pieces
from qkvflow.data.tokenizer import TOKENIZERS, Ids, Tokenizer, check_ids
from qkvflow.files import expanded, parse_json

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Tokens that end a text, by the names that they have in the vocabularies of known models."""


@TOKENIZERS.register("bpe")
@dataclass(frozen=True)
class BPETokenizer(Tokenizer):
    """Any tokenizer of the `tokenizers` package, held as the text of its tokenizer.json.

    BPETokenizer.fit(corpus.chunks("train"), vocab_size=8192)
    read_tokenizer_files(Path("gpt2"))
    """

    kind: ClassVar[str] = "bpe"
    json_text: str

    @classmethod
    def fit(cls, chunks: Iterable[str], vocab_size: int) -> "BPETokenizer":
        """Fit a byte-level BPE: 256 bytes and the merges found, with nothing unknown."""
        from tokenizers import pre_tokenizers, trainers

        if vocab_size < 256:
            raise DataError(f"vocab_size is {vocab_size}; byte-level BPE needs at least 256.")
        tokenizer = _byte_level()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(pieces(chunks), trainer)
        return cls.parse(tokenizer.to_str(), "a new tokenizer")

    @cached_property
    def vocab_size(self) -> int:
        # One past the largest id: some files leave holes, and an id must fit the embedding.
        return 1 + int(max(self._tokenizer.get_vocab(with_added_tokens=True).values()))

    def encode(self, text: str) -> Ids:
        clean = text.encode("utf-8", "replace").decode()
        try:
            ids = self._tokenizer.encode(clean, add_special_tokens=False).ids
        except Exception as error:  # tokenizers raises plain Exception
            raise DataError(
                f"The tokenizer cannot read the text: {error}. Add the token for what is unknown to "
                f"its vocabulary, or choose another tokenizer, such as byte."
            ) from error
        return np.asarray(ids, dtype=self.dtype)

    def decode(self, ids: npt.ArrayLike) -> str:
        checked = check_ids(ids, self.vocab_size).tolist()
        text: str = self._tokenizer.decode(checked, skip_special_tokens=False)
        return text

    def lost_bytes(self, text: str, ids: Ids) -> int:
        # What stands for the unknown gives nothing back, unless the text itself has it.
        if self._unknown is not None:
            places = np.flatnonzero(ids == self._tokenizer.token_to_id(self._unknown))
            ids = np.delete(ids, places[text.count(self._unknown) :])
        return super().lost_bytes(text, ids)

    @property
    def end_of_text(self) -> int | None:
        ids = map(self._tokenizer.token_to_id, ENDS)
        return next((int(found) for found in ids if found is not None), None)

    @cached_property
    def _unknown(self) -> str | None:
        """The token that stands for whatever the vocabulary lacks, if it has one."""
        model = json.loads(self.json_text)["model"]
        if model.get("unk_id") is not None:  # of a Unigram, whose vocabulary is a list
            return str(model["vocab"][model["unk_id"]][0])
        return model.get("unk_token") or None

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokenizer": json.loads(self.json_text)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BPETokenizer":
        return cls.parse(json.dumps(data["tokenizer"]), "the saved data")

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer as Backend

        tokenizer = Backend.from_str(self.json_text)
        tokenizer.no_truncation()  # some files cut every text to the length of a model's input
        tokenizer.no_padding()
        return tokenizer

    @classmethod
    def parse(cls, text: str, source: str) -> "BPETokenizer":
        """Check the text of a tokenizer.json and bring it into one form, so that equal is equal."""
        try:
            tokenizer = cls(json.dumps(parse_json(text), ensure_ascii=False))
            # Builds the backend, which reads the whole text.
            if tokenizer.vocab_size < 2:
                raise ValueError("it has fewer than two tokens")
        except BaseException as error:  # tokenizers raises plain Exception, or panics
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise DataError(
                f"The tokenizer in {source} cannot be used: {error}. Expected a tokenizer.json."
            ) from error
        return tokenizer


def _byte_level(vocab: dict[str, int] | None = None, merges: list[Any] | None = None) -> Any:
    """GPT-2's pipeline: split into words by its regular expression, then bytes, then merges."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    tokenizer = Backend(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt2(vocab: Path, merges: Path) -> Any:
    """Of GPT-2's own files."""
    lines = _read(merges).splitlines()
    pairs = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
    try:
        return _byte_level(parse_json(_read(vocab)), pairs)
    except Exception as error:  # tokenizers raises plain Exception
        raise DataError(
            f"{vocab} and {merges} are no GPT-2 tokenizer: {error}. Expected a JSON object "
            f"from token to id and a file with one merge a line."
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"The tokenizer file {path} cannot be read: {error}. Check the path."
        ) from error


def make_tokenizer(spec: str, corpus: Corpus, vocab_size: int = 8192) -> Tokenizer:
    """A tokenizer by name, fitted on the train split, or from a path.

    `byte`, `char`, `bpe` (trained to `vocab_size`), a `tokenizer.json`, or a directory that
    holds one or GPT-2's `vocab.json` and `merges.txt`.
    """
    if spec in TOKENIZERS:
        return TOKENIZERS[spec].fit(corpus.chunks("train"), vocab_size)
    return read_tokenizer_files(expanded(spec))


def read_tokenizer_files(path: Path) -> BPETokenizer:
    """The tokenizer of a tokenizer.json, or of a directory that holds one or GPT-2's files.

    A tokenizer.json is what the `tokenizers` and `transformers` packages write.
    """
    whole = path if path.is_file() else path / "tokenizer.json"
    if whole.is_file():
        return BPETokenizer.parse(_read(whole), str(whole))
    vocab, merges = path / "vocab.json", path / "merges.txt"
    if vocab.is_file():
        return BPETokenizer.parse(_gpt2(vocab, merges).to_str(), "a new tokenizer")
    raise DataError(
        f"There is no tokenizer {str(path)!r}. Expected one of {', '.join(TOKENIZERS)}, a "
        f"tokenizer.json, or a directory with one or with vocab.json and merges.txt."
    )
