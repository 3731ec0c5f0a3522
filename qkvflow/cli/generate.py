"""Continue a text with a trained model, at its own depth or at any other.

    qkvflow generate --checkpoint runs/first --prompt "The river " --tokens 300
    qkvflow generate --checkpoint runs/first --prompt "The river " --depth 12 --temperature 0
    qkvflow generate --checkpoint runs/first --prompt "The river " --draft-depth 2

When the model's longest sequence is full, it goes on from the second half of it.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.config import ConfigError
from qkvflow.config.strict import Count, NotNegativeInt, bound_problems
from qkvflow.data.tokenizer import Ids, Tokenizer
from qkvflow.generate import (
    Drafted,
    Stopped,
    choice_problems,
    generate,
    generate_stopping_early,
    generate_with_drafts,
)
from qkvflow.models import LanguageModel, unroll
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
    """Layers at which the weights are sampled; None is the model's own depth."""
    unit_steps: bool = False
    """Steps of 1 at every depth, in place of steps whose sum is the same at every depth."""
    tokens: Count = 200
    """Number of tokens to add."""
    temperature: float = 0.8
    """Sampling temperature: 0 takes the likeliest token, 1 samples as the model says."""
    top_k: int | None = None
    """Number of likeliest tokens to sample from; None: all."""
    top_p: float | None = None
    """Probability of the likeliest tokens to sample from, together; None: all tokens."""
    draft_depth: int | None = None
    """Layers at which the model proposes tokens that all its layers then check at once, which changes
    no probabilities and saves time where most are accepted; None: no proposals."""
    draft_tokens: Count = 4
    """Tokens that the model at --draft-depth layers proposes at a time."""
    stop_early: float | None = None
    """Total variation, 0 to 1: a token leaves the loop over layers when the next layer moves its
    prediction by no more. None: every token goes through all layers."""
    seed: NotNegativeInt = 0
    """Sampling seed."""


def run(options: Options) -> None:
    """Print the prompt and its continuation, as it comes."""
    problems = bound_problems(options)
    problems += choice_problems(options.temperature, options.top_k, options.top_p)
    if options.stop_early is not None and options.draft_depth is not None:
        problems.append("stop_early changes what --draft-depth is checked against; leave one out.")
    if problems:
        raise ConfigError("Nothing can be generated like this:", problems)
    model, tokenizer = load_model(options.checkpoint), read_tokenizer(options.checkpoint)
    prompt = np.asarray(read_prompt(tokenizer, options.prompt), np.int32)
    if options.depth is not None:
        with elapsed(f"sampling the weights at {options.depth} layers"):
            model = unroll(model, options.depth, unit_steps=options.unit_steps)
    shown = ""
    drafted: list[Drafted] = []
    stopped: list[Stopped] = []
    for ids in continuations(model, prompt, options, drafted, stopped):
        # A character may be made of several tokens: one that is not whole yet waits for the rest.
        text = options.prompt + tokenizer.decode(ids)
        whole = text if len(ids) == options.tokens else text.rstrip("\ufffd")
        print(whole[len(shown) :], end="", flush=True)
        shown = whole
    print()
    if drafted:
        print(said_of(drafted), file=sys.stderr)
    if stopped:
        used, layers = np.mean([each.layers for each in stopped]), model.config.num_layers
        print(f"Tokens stopped after {used:.1f} of {layers} layers on average.", file=sys.stderr)


def read_prompt(tokenizer: Tokenizer, text: str) -> Ids:
    """The ids of a prompt; what the tokenizer loses of it is said."""
    ids = tokenizer.encode(text)
    if not len(ids):
        raise ConfigError(
            "There is nothing to generate:", ["the prompt has 0 tokens; expected at least 1."]
        )
    if lost := tokenizer.lost_bytes(text, ids):
        print(
            f"The tokenizer loses {lost} bytes of the prompt, which it does not know.", file=sys.stderr
        )
    return ids


def said_of(drafted: list[Drafted]) -> str:
    """What became of all drafts of a text, in one line."""
    proposed = sum(each.proposed for each in drafted)
    accepted = sum(each.accepted for each in drafted)
    note = drafted[-1].note
    if not proposed:
        return note or "There was nothing to propose."
    depth, share = drafted[-1].depth, accepted / proposed
    line = f"At depth {depth}, {proposed} tokens were proposed and {accepted} accepted ({share:.0%})."
    return line if note is None else f"{line} {note}"


def continuations(
    model: LanguageModel,
    prompt: np.ndarray,
    options: Options,
    drafted: list[Drafted],
    stopped: list[Stopped],
) -> Iterator[np.ndarray]:
    """All new tokens so far, again and again, each time with more.

    What became of drafts, and of tokens that stopped early, is added.
    """
    longest = model.config.max_position_embeddings
    key = jax.random.key(options.seed)
    ids = prompt
    if longest < 2:
        raise ConfigError("Nothing can be generated:", ["the model sees one position only."])
    while len(ids) < len(prompt) + options.tokens:
        left = len(prompt) + options.tokens - len(ids)
        context = ids if len(ids) < longest else ids[-(longest // 2) :]
        count = min(left, longest - len(context))
        key, k = jax.random.split(key)
        layers = model.config.num_layers
        with elapsed(f"compiling, then generating {count} tokens with {layers} layers"):
            named = hax.named(jnp.asarray(context)[None], ("batch", "position"))
            whole = _continued(model, named, count, k, options, drafted, stopped)
        new = np.asarray(whole.array)[0, len(context) :]
        ids = np.concatenate([ids, new])
        yield ids[len(prompt) :]


def _continued(
    model: LanguageModel,
    context: NamedArray,
    count: int,
    key: Array,
    options: Options,
    drafted: list[Drafted],
    stopped: list[Stopped],
) -> NamedArray:
    """The context and `count` more tokens; without drafts once they have not paid."""
    how: dict[str, Any] = {
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
    }
    if options.stop_early is not None:
        bound = options.stop_early
        stopped.append(generate_stopping_early(model, context, count, key=key, bound=bound, **how))
        return stopped[-1].text
    if options.draft_depth is None or (drafted and drafted[-1].note):
        return generate(model, context, count, key=key, **how)
    how |= {"draft_depth": options.draft_depth, "draft_tokens": options.draft_tokens}
    drafted.append(generate_with_drafts(model, context, count, key=key, **how))
    return drafted[-1].text
