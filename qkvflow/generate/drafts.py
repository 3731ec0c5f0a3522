"""Drafts from the model itself: few layers propose tokens, all layers check them in one pass.

    accept a proposal d, drawn from q, with probability min(1, p(d) / q(d));
    at the first that falls, draw from max(p - q, 0), normalised; where none falls, one more from p

(Leviathan et al. 2023; Chen et al. 2023). Each token so has exactly the distribution p of the full
depth, up to the rounding of a pass over several positions; at temperature 0, where p and q are 0 or 1,
it is the likeliest. p and q are what `choose_token` draws from, after temperature, top-k and top-p.

Symbols: K proposals a round. n tokens of a row are known; the caches of the full depth hold what n - 1
of them left, those of the draft n - 2, so that its first pass of a round reads two. A rejection takes
nothing back: caches are addressed by position, and the next round goes on from a smaller offset.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array, lax

from qkvflow.config import Gpt2Config
from qkvflow.generate.choosing import choose_token, token_probabilities
from qkvflow.generate.plain import continue_rows
from qkvflow.generate.request import as_rows, as_text, check_request, draft_problems, unrounded
from qkvflow.models import LanguageModel, forward_flops, unroll

PATIENCE = 8.0
"""Steps of plain generation that drafts may have cost a row before they are given up."""


class Costs(NamedTuple):
    """What time is lost to drafts besides operations, as measured on CPUs at widths 64 to 512."""

    several: float = 0.5
    """Of a pass over several tokens, which multiplies by other routines; in passes of one."""
    token: float = 0.15
    """Of each of its tokens after the first, in passes of one."""
    round: float = 6e6
    """Of a round besides its passes, in operations of a pass of one token."""

    def of(self, tokens: int) -> float:
        """A pass over so many tokens, in passes of one."""
        return 1 + (tokens > 1) * self.several + self.token * (tokens - 1)


COSTS = Costs()


@dataclass(frozen=True)
class Drafted:
    """A text that was continued with drafts, and what became of them."""

    text: NamedArray
    """Prompt and continuation."""
    depth: int
    """Layers of the draft."""
    proposed: int
    """Tokens that the draft proposed."""
    accepted: int
    """Proposals that the full depth let stand."""
    needed: float
    """Share of the proposals that has to stand for drafts to pay; from 1 on they cannot."""
    plain: int
    """Tokens that were generated without drafts, since those did not pay."""

    @property
    def acceptance(self) -> float:
        """Share of the proposals that stood; 0 where there were none."""
        return self.accepted / max(self.proposed, 1)

    @property
    def note(self) -> str | None:
        """A sentence where drafts did not pay."""
        if self.plain == 0:
            return None
        if self.needed >= 1:
            return (
                f"Drafting at depth {self.depth} cannot save time here, even if every proposed token "
                "were accepted: the text was generated without drafts."
            )
        return (
            f"Drafting at depth {self.depth} does not save time here: {self.acceptance:.0%} of the "
            f"proposed tokens were accepted, but more than {self.needed:.0%} would have to be. The "
            f"other {self.plain} tokens were generated without drafts."
        )


def generate_with_drafts(
    model: LanguageModel,
    prompt_ids: NamedArray,
    max_new_tokens: int,
    *,
    draft_depth: int,
    draft_tokens: int = 4,
    key: Array | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Drafted:
    """`generate` with drafts; returns the text and how many of the proposals stood.

    `unroll(model, draft_depth)` proposes `draft_tokens` tokens at a time. Drafts pay where a round
    gives more tokens than it costs in steps of plain generation, by `COSTS`. Those that have cost
    `PATIENCE` steps are given up for the rest of the text, those that cannot pay are never begun.

    Examples:
        >>> import haliax as hax, jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import NeuralODELM
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=4)
        >>> model = NeuralODELM.init(config, key=jax.random.key(0))
        >>> prompt = hax.named(jax.numpy.array([[1, 2, 3]]), ("batch", "position"))
        >>> drafted = generate_with_drafts(model, prompt, 9, draft_depth=1, temperature=0.0)
        >>> drafted.text.resolve_axis("position").size
        12
    """
    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    problems = draft_problems(model, draft_depth, draft_tokens)
    check_request(model, prompt_ids, max_new_tokens, key, **how, more_problems=problems)
    ids, rows = as_rows(prompt_ids)
    model, depth, proposals = unrounded(model), int(draft_depth), int(draft_tokens)
    batch, length = rows.shape
    needed = share_to_pay(model, depth, proposals, batch, length + max_new_tokens)
    if max_new_tokens == 0:
        return Drafted(ids, depth, 0, 0, needed, 0)
    key = jax.random.key(0) if key is None else key
    choose = eqx.Partial(choose_token, **how)
    if needed >= 1:
        new = continue_rows(model, rows, key, max_new_tokens, choose)
        text = as_text(jnp.concatenate([rows, new], axis=1), ids)
        return Drafted(text, depth, 0, 0, needed, new.size)
    choices = choose, eqx.Partial(token_probabilities, **how)
    whole, rounds, accepted, plain = _continue(
        model, rows, key, max_new_tokens, depth, proposals, needed, *choices
    )
    proposed = int(rounds) * proposals
    return Drafted(as_text(whole, ids), depth, proposed, int(accepted), needed, int(plain))


def share_to_pay(model: LanguageModel, depth: int, proposals: int, rows: int, length: int) -> float:
    """Share of the proposals of a round that has to stand to make up for what it costs.

    Costs are in steps of plain generation: a pass of one token for every row, through all layers.
    """
    kind, config = type(model), model.config
    plain = _operations(kind, config, config.num_layers, length)
    shallow = _operations(kind, config, depth, length) / plain
    two, checked, one = (COSTS.of(rows * tokens) for tokens in (2, proposals + 1, 1))
    in_all = (shallow * (two + (proposals - 1) * one) + checked + COSTS.round / plain) / one
    return (in_all - 1) / proposals  # a token more than those that stand comes of every round


@cache
def _operations(kind: type[LanguageModel], config: Gpt2Config, depth: int, length: int) -> float:
    """Those of a pass of one token through so many layers."""
    model = eqx.filter_eval_shape(kind.init, config, key=jax.random.key(0))
    return forward_flops(model, 1, length, depth) / length


class _Reader(eqx.Module):
    """A model with its weights made, that reads rows which stand at different positions."""

    model: LanguageModel
    layers: list[list[Any]]

    def empty_caches(self, rows: int, length: int, back: int) -> Any:
        """Caches of every row by itself, with a leading axis of rows where there are several.

        A single row is no batch of one: its caches would be copied in every pass, not changed in place.
        """
        one = self.model.empty_caches(1, length, back)
        if rows == 1:
            return one
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), one)

    def __call__(self, ids: Array, caches: Any, offsets: Array) -> tuple[Array, Any]:
        """Logits [rows, position, vocab] of ids [rows, position] that follow `offsets` others."""

        def row(ids: Array, caches: Any, offset: Array) -> tuple[Array, Any]:
            logits, caches = self.model.extend(self.layers, ids[None], caches, offset)
            return logits[0], caches

        if ids.shape[0] > 1:
            return jax.vmap(row)(ids, caches, offsets)
        logits, caches = row(ids[0], caches, offsets[0])
        return logits[None], caches


class _State(NamedTuple):
    """What a round goes on from."""

    text: Array
    """[rows, length + count + K + 1]; tokens beyond `known` mean nothing."""
    known: Array
    """[rows]: n."""
    caches: Any
    draft_caches: Any
    key: Array
    rounds: Array
    """[rows]: rounds in which a row was not finished."""
    accepted: Array
    """[rows]: proposals that stood."""


@eqx.filter_jit
def _continue(
    model: LanguageModel,
    prompt: Array,
    key: Array,
    count: int,
    depth: int,
    proposals: int,
    needed: float,
    choose: Callable[..., Array],
    probabilities: Callable[..., Array],
) -> tuple[Array, Array, Array, Array]:
    """The text; of all rows the rounds, the accepted proposals and the tokens without drafts."""
    full, shallow = _readers(model, depth)
    end = prompt.shape[1] + count
    start = _read_prompt(full, shallow, prompt, key, count, proposals, choose)
    drafted = lax.while_loop(
        lambda state: _is_worth_a_round(state, end, proposals, needed),
        lambda state: _next_round(full, shallow, state, end, proposals, choose, probabilities),
        start,
    )
    text = _finish(full, drafted, end, choose)
    plain = jnp.sum(end - drafted.known)
    return text[:, :end], jnp.sum(drafted.rounds), jnp.sum(drafted.accepted), plain


def _readers(model: LanguageModel, depth: int) -> tuple[_Reader, _Reader]:
    """The full depth and the draft."""
    draft = unroll(model, depth)
    return _Reader(model, model.layers()), _Reader(draft, draft.layers())


def _is_worth_a_round(state: _State, end: Array | int, proposals: int, needed: float) -> Array:
    """Whether a text is not finished, and drafts have not cost more than they may."""
    rounds, accepted = (jnp.sum(each).astype(jnp.float32) for each in (state.rounds, state.accepted))
    lost = needed * proposals * rounds - accepted
    return jnp.any(state.known < end) & (lost <= PATIENCE * len(state.rounds))


def _next_round(
    full: _Reader,
    shallow: _Reader,
    state: _State,
    end: Array | int,
    proposals: int,
    choose: Callable[..., Array],
    probabilities: Callable[..., Array],
) -> _State:
    """The state after a round."""
    key, k_propose, k_judge = jax.random.split(state.key, 3)
    tokens, q, draft_caches = _propose(shallow, state, k_propose, proposals, choose, probabilities)
    ids = jnp.concatenate([_tokens_at(state.text, state.known - 1, 1), tokens], axis=1)
    logits, caches = full(ids, state.caches, state.known - 1)
    keys = jax.random.split(k_judge, len(tokens))
    accepted, new = jax.vmap(_judge)(probabilities(logits), q, tokens, keys)
    unfinished = state.known < end
    return _State(
        text=_written(state.text, new, state.known),
        known=jnp.minimum(state.known + accepted + 1, end),
        caches=caches,
        draft_caches=draft_caches,
        key=key,
        rounds=state.rounds + unfinished.astype(jnp.int32),
        accepted=state.accepted + jnp.where(unfinished, accepted, 0),
    )


def _read_prompt(
    full: _Reader,
    shallow: _Reader,
    prompt: Array,
    key: Array,
    count: int,
    proposals: int,
    choose: Callable[..., Array],
) -> _State:
    """The state after the prompt and one token from the full depth."""
    rows, length = prompt.shape
    room, back = length + count + proposals, proposals + 1
    caches, draft_caches = (of.empty_caches(rows, room, back) for of in (full, shallow))
    zeros = jnp.zeros((rows,), jnp.int32)
    if length > 1:
        _, draft_caches = shallow(prompt[:, :-1], draft_caches, zeros)
    logits, caches = full(prompt, caches, zeros)
    key, k_first = jax.random.split(key)
    text = jnp.pad(prompt, ((0, 0), (0, count + proposals + 1)))
    text = text.at[:, length].set(choose(logits[:, -1], k_first))
    return _State(text, zeros + length + 1, caches, draft_caches, key, zeros, zeros)


def _propose(
    shallow: _Reader,
    state: _State,
    key: Array,
    proposals: int,
    choose: Callable[..., Array],
    probabilities: Callable[..., Array],
) -> tuple[Array, Array, Any]:
    """Proposals [rows, K], the distributions q [rows, K, vocab] they come from, and caches."""
    keys = jax.random.split(key, proposals)
    ids = _tokens_at(state.text, state.known - 2, 2)
    logits, caches = shallow(ids, state.draft_caches, state.known - 2)
    first, q = choose(logits[:, -1], keys[0]), probabilities(logits[:, -1])

    def step(carry: tuple, inputs: tuple[Array, Array]) -> tuple[tuple, tuple[Array, Array]]:
        token, caches = carry
        i, key = inputs
        logits, caches = shallow(token[:, None], caches, state.known + i)
        token = choose(logits[:, -1], key)
        return (token, caches), (token, probabilities(logits[:, -1]))

    later = jnp.arange(proposals - 1), keys[1:]
    (_, caches), (tokens, qs) = lax.scan(step, (first, caches), later)
    tokens, qs = jnp.concatenate([first[None], tokens]), jnp.concatenate([q[None], qs])
    return tokens.swapaxes(0, 1), qs.swapaxes(0, 1), caches


def _judge(p: Array, q: Array, tokens: Array, key: Array) -> tuple[Array, Array]:
    """How many of K tokens drawn from q [K, vocab] stand by p [K + 1, vocab]; they and one more."""
    k_accept, k_draw = jax.random.split(key)
    proposals = jnp.arange(len(tokens))
    of_full, of_draft = p[proposals, tokens], q[proposals, tokens]
    chance = jax.random.uniform(k_accept, of_draft.shape)
    stands = (of_full >= of_draft) | (chance * of_draft < of_full)
    accepted = jnp.sum(jnp.cumprod(stands.astype(jnp.int32)))
    here = p[accepted]
    rest = jnp.maximum(here - jnp.pad(q, ((0, 1), (0, 0)))[accepted], 0.0)
    # Where p and q are equal but for rounding, nothing may be left of their difference.
    rest = jnp.where(jnp.sum(rest) > 0, rest, here)
    token = jax.random.categorical(k_draw, jnp.log(rest)).astype(tokens.dtype)
    return accepted, jnp.pad(tokens, (0, 1)).at[accepted].set(token)


def _finish(full: _Reader, state: _State, end: int, choose: Callable[..., Array]) -> Array:
    """The text after the tokens that are still missing, one a step."""
    carry = _Plain(state.text, state.known, state.caches, state.key)
    return lax.while_loop(
        lambda carry: jnp.any(carry.known < end),
        lambda carry: _next_token(full, carry, end, choose),
        carry,
    ).text


class _Plain(NamedTuple):
    """What a step without drafts goes on from; its fields are those of `_State`."""

    text: Array
    known: Array
    caches: Any
    key: Array


def _next_token(full: _Reader, state: _Plain, end: Array | int, choose: Callable[..., Array]) -> _Plain:
    """The state after one token more."""
    text, known, caches, key = state
    key, k_token = jax.random.split(key)
    logits, caches = full(_tokens_at(text, known - 1, 1), caches, known - 1)
    text = _written(text, choose(logits[:, -1], k_token)[:, None], known)
    return _Plain(text, jnp.minimum(known + 1, end), caches, key)


def tokens_with_drafts(
    model: LanguageModel,
    prompt: Array,
    key: Array,
    count: int,
    depth: int,
    proposals: int,
    needed: float,
    choices: tuple[Callable[..., Array], Callable[..., Array]],
    room: int,
) -> Generator[np.ndarray, None, tuple[int, int, int]]:
    """Yield tokens [rows, some], those of `_continue`, as soon as all rows have them.

    Returns the rounds and accepted proposals of all rows, and the tokens of plain steps.

    Args:
        choices: how a token is chosen, and from which probabilities.
        room: positions of a text, which decides what is compiled.
    """
    shown = prompt.shape[1]
    end, more = jnp.asarray(shown + count, jnp.int32), room - shown
    readers, state = _begun(model, prompt, key, more, depth, proposals, choices[0])

    def news() -> np.ndarray:
        nonlocal shown
        begin, shown = shown, int(np.min(state.known))
        return np.asarray(state.text)[:, begin:shown]

    yield news()
    while _is_worth_a_round(state, end, proposals, needed):
        state = _one_round((readers, _without_caches(state), end, proposals, *choices), _caches(state))
        yield news()
    plain = int(np.sum(end - np.asarray(state.known)))
    while shown < end:
        state = _one_token((readers[0], _without_caches(state), end, choices[0]), _caches(state))
        yield news()
    return int(np.sum(state.rounds)), int(np.sum(state.accepted)), plain


@eqx.filter_jit
def _begun(
    model: LanguageModel,
    prompt: Array,
    key: Array,
    count: int,
    depth: int,
    proposals: int,
    choose: Callable[..., Array],
) -> tuple[tuple[_Reader, _Reader], _State]:
    """The full depth and the draft, and the state after the prompt."""
    readers = _readers(model, depth)
    return readers, _read_prompt(*readers, prompt, key, count, proposals, choose)


def _caches(state: _State) -> tuple[Any, Any]:
    return state.caches, state.draft_caches


def _without_caches(state: _State) -> _State:
    return state._replace(caches=None, draft_caches=None)


@eqx.filter_jit(donate="all-except-first")
def _one_round(given: tuple[Any, ...], caches: tuple[Any, Any]) -> _State:
    (full, shallow), state, end, proposals, choose, probabilities = given
    state = state._replace(caches=caches[0], draft_caches=caches[1])
    return _next_round(full, shallow, state, end, proposals, choose, probabilities)


@eqx.filter_jit(donate="all-except-first")
def _one_token(given: tuple[Any, ...], caches: tuple[Any, Any]) -> _State:
    full, state, end, choose = given
    plain = _next_token(full, _Plain(state.text, state.known, caches[0], state.key), end, choose)
    return state._replace(**plain._asdict(), draft_caches=caches[1])


def _tokens_at(text: Array, start: Array, count: int) -> Array:
    """`count` tokens of every row, from its own start."""
    return jax.vmap(lambda row, at: lax.dynamic_slice_in_dim(row, at, count))(text, start)


def _written(text: Array, tokens: Array, start: Array) -> Array:
    """The text with tokens [rows, count] written to every row at its own start."""
    write = jax.vmap(lambda row, new, at: lax.dynamic_update_slice_in_dim(row, new, at, 0))
    return write(text, tokens, start)
