"""Continue a text with a trained model, at its own depth or at any other.

    qkvflow generate --checkpoint runs/first --prompt "The river " --tokens 300
    qkvflow generate --checkpoint runs/first --prompt "The river " --depth 12 --temperature 0
    qkvflow generate --checkpoint runs/first --prompt "The river " --draft-depth 2

Text is printed as it is generated. When the model's longest sequence is full, generation continues from
the second half of the text so far.
"""

import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray

from qkvflow.config import ConfigError
from qkvflow.config.strict import Count, NotNegativeInt, bound_problems
from qkvflow.data.tokenizer import Ids, Tokenizer
from qkvflow.generate import Drafted, choice_problems, stream
from qkvflow.models import unroll
from qkvflow.progress import elapsed
from qkvflow.train import load_model, read_tokenizer


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow generate`."""

    checkpoint: Path
    """Directory of a run, of a checkpoint, or of an exported model."""
    prompt: str
    """Text to continue."""
    depth: int | None = None
    """Number of layers at which the weights are sampled; None: the model's own depth."""
    unit_steps: bool = False
    """Use step size 1 at every depth, instead of keeping the sum of all steps the same."""
    tokens: Count = 200
    """Number of tokens to generate."""
    temperature: float = 0.8
    """Sampling temperature: 0 always takes the most likely token, 1 samples from the model as it is."""
    top_k: int | None = None
    """Number of most likely tokens to sample from; None: all."""
    top_p: float | None = None
    """Total probability, 0 to 1, of the most likely tokens to sample from; None: all tokens."""
    draft_depth: int | None = None
    """Number of layers that draft tokens, which all layers then verify at once (speculative decoding):
    the same distribution, faster if most drafts are accepted. None: no drafts."""
    draft_tokens: Count = 4
    """Number of tokens drafted at a time, with --draft-depth."""
    stop_early: float | None = None
    """Early-exit threshold, 0 to 1: a token skips the remaining layers once a layer changes its
    prediction by at most this, in total variation distance. None: every token uses all layers."""
    seed: NotNegativeInt = 0
    """Sampling seed."""


def run(options: Options) -> None:
    """Print the prompt and its continuation, as it comes."""
    problems = bound_problems(options)
    problems += choice_problems(options.temperature, options.top_k, options.top_p)
    if options.stop_early is not None and options.draft_depth is not None:
        problems.append("stop_early changes the model that --draft-depth verifies with; leave one out.")
    if problems:
        raise ConfigError("Nothing can be generated like this:", problems)
    model, tokenizer = load_model(options.checkpoint), read_tokenizer(options.checkpoint)
    prompt = np.asarray(read_prompt(tokenizer, options.prompt), np.int32)
    if options.depth is not None:
        with elapsed(f"sampling the weights at {options.depth} layers"):
            model = unroll(model, options.depth, unit_steps=options.unit_steps)
    blocks = stream(
        model,
        hax.named(jnp.asarray(prompt)[None], ("batch", "position")),
        options.tokens,
        key=jax.random.key(options.seed),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        draft_depth=options.draft_depth,
        draft_tokens=options.draft_tokens,
        stop_early=options.stop_early,
    )
    with elapsed("compiling, then reading the prompt"):
        first = next(blocks)
    show(options.prompt, itertools.chain([first], blocks), options.tokens, tokenizer)
    if blocks.drafted:
        print(said_of(blocks.drafted), file=sys.stderr)
    if blocks.stopped:
        used, layers = np.mean([each.layers for each in blocks.stopped]), model.config.num_layers
        print(f"Tokens exited after {used:.1f} of {layers} layers on average.", file=sys.stderr)


def show(prompt: str, blocks: Iterable[NamedArray], count: int, tokenizer: Tokenizer) -> None:
    """Print a prompt and the tokens that follow it, each block as soon as it is there."""
    shown, ids = "", np.zeros((0,), np.int32)
    for block in blocks:
        ids = np.concatenate([ids, np.asarray(block.array)[0]])
        # A character may be made of several tokens: one that is not whole yet waits for the rest.
        text = prompt + tokenizer.decode(ids)
        whole = text if len(ids) == count else text.rstrip("\ufffd")
        print(whole[len(shown) :], end="", flush=True)
        shown = whole
    print()


def read_prompt(tokenizer: Tokenizer, text: str) -> Ids:
    """The ids of a prompt; what the tokenizer loses of it is said."""
    ids = tokenizer.encode(text)
    if not len(ids):
        raise ConfigError(
            "There is nothing to generate:", ["the prompt has 0 tokens; expected at least 1."]
        )
    if lost := tokenizer.lost_bytes(text, ids):
        print(f"The tokenizer loses {lost} bytes of the prompt that it cannot encode.", file=sys.stderr)
    return ids


def said_of(drafted: list[Drafted]) -> str:
    """What became of all drafts of a text, in one line."""
    proposed = sum(each.proposed for each in drafted)
    accepted = sum(each.accepted for each in drafted)
    note = drafted[-1].note
    if not proposed:
        return note or "No tokens were drafted."
    depth, share = drafted[-1].depth, accepted / proposed
    line = f"At depth {depth}, {proposed} tokens were drafted and {accepted} accepted ({share:.0%})."
    return line if note is None else f"{line} {note}"
