"""Text as it comes: the tokens of `generate`, each as soon as it is known, as many as one likes."""

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.generate.choosing import choose_token, token_probabilities
from qkvflow.generate.drafts import Drafted, share_to_pay, tokens_with_drafts
from qkvflow.generate.early import Stopped, tokens_stopping_early
from qkvflow.generate.layerwise import tokens_one_by_one
from qkvflow.generate.request import (
    as_rows,
    as_text,
    check_request,
    draft_problems,
    key_of_window,
    next_window,
    unrounded,
)
from qkvflow.models import LanguageModel
from qkvflow.models.early import check_early

Block = np.ndarray | Array
_Result = TypeVar("_Result")
_Pieces = Generator[Block, None, _Result]
LEAST_ROOM = 64
"""Positions that caches have at least, so that short texts share their programs."""


@dataclass
class Stream(Iterator[NamedArray]):
    """New tokens, in blocks with the axes of the prompt; iterate over it."""

    _model: LanguageModel
    _choice: dict[str, Any]
    _drafts: tuple[int, int] | None
    """Layers and tokens of drafts; None: there are none."""
    _bound: float | None
    """Within which tokens stop early; None: they do not."""
    _blocks: Iterator[NamedArray] = field(default_factory=lambda: iter(()))
    drafted: list[Drafted] = field(default_factory=list)
    """What became of drafts, of each window of the text that has ended."""
    stopped: list[Stopped] = field(default_factory=list)
    """After how many layers tokens stopped, of each window of the text that has ended."""

    def __next__(self) -> NamedArray:
        return next(self._blocks)

    def of(self, prompt: NamedArray, count: int, key: Array) -> "Stream":
        """The same, about to continue a prompt."""
        self._blocks = self._windows(prompt, count, key)
        return self

    def _windows(self, prompt: NamedArray, count: int, key: Array) -> Iterator[NamedArray]:
        ids, rows = as_rows(prompt)
        text, end = np.asarray(rows), rows.shape[1] + count
        longest = self._model.config.max_position_embeddings
        room = min(longest, max(LEAST_ROOM, 1 << (end - 1).bit_length()))
        for number in itertools.count():
            if text.shape[1] == end:
                return
            window, new = next_window(text, end, longest)
            own = key_of_window(key, number)
            for block in self._window(jnp.asarray(window), ids, new, own, room):
                text = np.concatenate([text, block], axis=1)
                yield as_text(jnp.asarray(block), ids)

    def _window(
        self, rows: Array, ids: NamedArray, count: int, key: Array, room: int
    ) -> Iterator[Block]:
        """The new tokens of a window; once drafts have not paid, without them."""
        asked = self._model, rows, key, count
        choose = eqx.Partial(choose_token, **self._choice)
        kept: list[Block] = [rows]
        if self._bound is not None:
            pieces = tokens_stopping_early(*asked, choose, self._bound, room)
            layers = yield from _keeping(pieces, kept)
            self.stopped.append(Stopped(_whole(kept, ids), layers))
        elif self._drafts is None or (self.drafted and self.drafted[-1].note):
            yield from tokens_one_by_one(*asked, choose, room)
        else:
            counts = yield from _keeping(self._drafting(*asked, choose, self._drafts, room), kept)
            self.drafted.append(Drafted(_whole(kept, ids), *counts))

    def _drafting(
        self,
        model: LanguageModel,
        rows: Array,
        key: Array,
        count: int,
        choose: Any,
        drafts: tuple[int, int],
        room: int,
    ) -> _Pieces[tuple[int, int, int, float, int]]:
        """Tokens with drafts, unless those cannot pay; returns what `Drafted` says beside the text."""
        depth, proposals = drafts
        needed = share_to_pay(model, depth, proposals, rows.shape[0], rows.shape[1] + count)
        if needed >= 1:
            yield from tokens_one_by_one(model, rows, key, count, choose, room)
            return depth, 0, 0, needed, rows.shape[0] * count
        choices = choose, eqx.Partial(token_probabilities, **self._choice)
        asked = model, rows, key, count, depth, proposals, needed
        rounds, accepted, plain = yield from tokens_with_drafts(*asked, choices, room)
        return depth, rounds * proposals, accepted, needed, plain


def _keeping(pieces: _Pieces[_Result], kept: list[Block]) -> _Pieces[_Result]:
    """Pass on what comes, and keep it."""
    while True:
        try:
            block = next(pieces)
        except StopIteration as end:
            return cast(_Result, end.value)
        kept.append(block)
        yield block


def _whole(blocks: Sequence[Block], ids: NamedArray) -> NamedArray:
    """A prompt and what followed, as a text."""
    return as_text(jnp.concatenate(blocks, axis=1), ids)


def stream(
    model: LanguageModel,
    prompt_ids: NamedArray,
    max_new_tokens: int,
    *,
    key: Array | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    draft_depth: int | None = None,
    draft_tokens: int = 4,
    stop_early: float | None = None,
) -> Stream:
    """Continue a prompt, giving each token as soon as it is known; `generate` explains the arguments.

    The tokens are those of `generate` with the same key. The first comes soon: one layer is compiled,
    not all of them, and nothing depends on the number of tokens; `generate` is faster for many tokens
    or many calls. With drafts tokens come a round at a time. When the longest sequence is full, the
    second half of it is the prompt from which it goes on, the n-th time with `fold_in(key, n)`.

    Examples:
        >>> import haliax as hax, jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import NeuralODELM
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2)
        >>> model = NeuralODELM.init(config, key=jax.random.key(0))
        >>> prompt = hax.named(jax.numpy.array([[1, 2, 3]]), ("batch", "position"))
        >>> [block.resolve_axis("position").size for block in stream(model, prompt, 3, temperature=0.0)]
        [1, 1, 1]
    """
    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    drafts = None if draft_depth is None else (draft_depth, draft_tokens)
    problems = _problems(model, max_new_tokens, drafts, stop_early)
    check_request(model, _last(prompt_ids, model), 0, key, **how, more_problems=problems)
    key = jax.random.key(0) if key is None else key
    return Stream(unrounded(model), how, drafts, stop_early).of(prompt_ids, max_new_tokens, key)


def _last(prompt: NamedArray, model: LanguageModel) -> NamedArray:
    """As many positions of a prompt as a model sees; what is none, `check_request` refuses."""
    if not isinstance(prompt, NamedArray) or "position" not in prompt.axis_names:
        return prompt
    return prompt["position", -model.config.max_position_embeddings :]


def _problems(
    model: LanguageModel, count: int, drafts: tuple[int, int] | None, bound: float | None
) -> tuple[str, ...]:
    """Sentences on what of a request is not said by `check_request`."""
    problems = []
    if model.config.max_position_embeddings < 2:
        problems.append("the model sees one position only.")
    if count < 0:
        problems.append(f"max_new_tokens is {count}; expected at least 0.")
    if drafts is not None and bound is not None:
        problems.append("stop_early changes the model that verifies drafts; leave one out.")
    if drafts is not None:
        problems += draft_problems(model, *drafts)
    if bound is not None:
        check_early(model, bound)
    return tuple(problems)
