"""Continuations up to a stop string: prompts of one length together, with caches.

A prompt is read in pieces whose lengths are powers of two, and tokens come a few at a time, so that few
programs are compiled, whatever the lengths. Where the longest sequence is full it goes on from the
second half of it, as `qkvflow generate` does.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from qkvflow.data import Tokenizer
from qkvflow.generate import choose_token
from qkvflow.models import LanguageModel

PIECE = 16
"""Tokens that come at a time; after each piece it is seen whether a text has ended."""


@dataclass(frozen=True)
class Wish:
    """How a text is to be continued."""

    until: tuple[str, ...]
    most: int
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None


@dataclass
class Text:
    """A text that is being continued."""

    prompt: np.ndarray
    wish: Wish
    new: list[int] = field(default_factory=list)
    finished: str | None = None
    """The continuation, once it has ended."""

    def extend(self, ids: Sequence[int], tokenizer: Tokenizer) -> None:
        """Take new tokens; end at a stop string, at the end of a text, or at the most tokens."""
        if self.finished is not None:
            return
        self.new = [*self.new, *ids][: self.wish.most]
        end = tokenizer.end_of_text
        ended = end is not None and end in self.new
        self.new = list(itertools.takewhile(lambda token: token != end, self.new))
        said = tokenizer.decode(self.new)
        stops = [said.index(stop) for stop in self.wish.until if stop and stop in said]
        if stops or ended or len(self.new) >= self.wish.most:
            self.finished = said[: min(stops)] if stops else said


def continue_texts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    batch_size: int,
    key: Array,
    advance: Callable[[int], None] = lambda texts: None,
) -> list[str]:
    """The continuation of every text, in their order."""
    longest = model.config.max_position_embeddings
    layers = eqx.filter_jit(lambda model: model.layers())(model)
    while waiting := [text for text in texts if text.finished is None]:
        first = max(waiting, key=lambda text: len(_window(text, longest)))
        length = len(_window(first, longest))
        alike = [t for t in waiting if t.wish == first.wish and len(_window(t, longest)) == length]
        batch = alike[:batch_size]
        key, own = jax.random.split(key)
        _fill(model, layers, tokenizer, batch, batch_size, own)
        advance(sum(text.finished is not None for text in batch))
    return [text.finished or "" for text in texts]


def _window(text: Text, longest: int) -> np.ndarray:
    """What the model sees of a text, which leaves room for what is to come, half of it at the most."""
    room = min(text.wish.most - len(text.new), max(longest // 2, 1))
    return np.concatenate([text.prompt, np.asarray(text.new, np.int32)])[-max(longest - room, 1) :]


def _fill(
    model: LanguageModel,
    layers: Any,
    tokenizer: Tokenizer,
    batch: list[Text],
    size: int,
    key: Array,
) -> None:
    """Continue texts of one length until all have ended or the longest sequence is full."""
    longest, wish = model.config.max_position_embeddings, batch[0].wish
    rows = np.stack([_window(text, longest) for text in batch]).astype(np.int32)
    rows = np.pad(rows, ((0, size - len(rows)), (0, 0)), mode="edge")
    caches, offset = model.empty_caches(size, longest + PIECE), 0
    choose = eqx.Partial(choose_token, temperature=wish.temperature, top_k=wish.top_k, top_p=wish.top_p)
    for width in _powers(rows.shape[1]):
        piece = jnp.asarray(rows[:, offset : offset + width])
        logits, caches = _read(model, layers, piece, caches, jnp.asarray(offset))
        offset += width
    while any(text.finished is None for text in batch) and offset <= longest:
        key, own = jax.random.split(key)
        new, logits, caches = _write(model, layers, logits, caches, jnp.asarray(offset), own, choose)
        kept = np.asarray(new)[:, : longest + 1 - offset]
        for text, ids in zip(batch, kept):
            text.extend(ids.tolist(), tokenizer)
        offset += PIECE


def _powers(length: int) -> list[int]:
    """Powers of two that add up to a length, the largest first."""
    return [1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1]


@eqx.filter_jit
def _read(
    model: LanguageModel, layers: Any, ids: Array, caches: Any, offset: Array
) -> tuple[Array, Any]:
    """Logits [batch, vocab] after the last of ids [batch, position], and the caches."""
    logits, caches = model.extend(layers, ids, caches, offset)
    return logits[:, -1], caches


@eqx.filter_jit
def _write(
    model: LanguageModel,
    layers: Any,
    logits: Array,
    caches: Any,
    offset: Array,
    key: Array,
    choose: Callable[..., Array],
) -> tuple[Array, Array, Any]:
    """New tokens [batch, PIECE] that follow `offset` others, the logits after them, the caches."""

    def step(carry: tuple, inputs: tuple[Array, Array]) -> tuple[tuple, Array]:
        logits, caches = carry
        offset, key = inputs
        token = choose(logits, key)
        logits, caches = model.extend(layers, token[:, None], caches, offset)
        return (logits[:, -1], caches), token

    inputs = offset + jnp.arange(PIECE), jax.random.split(key, PIECE)
    (logits, caches), new = lax.scan(step, (logits, caches), inputs)
    return new.T, logits, caches
