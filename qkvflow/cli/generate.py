"""Continue a text with a trained model, at its own depth or at any other.

    qkvflow generate --checkpoint runs/first --prompt "The river " --tokens 300
    qkvflow generate --checkpoint runs/first --prompt "The river " --depth 12 --temperature 0

When the model's longest sequence is full, it goes on from the second half of it.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.config import ConfigError
from qkvflow.config.strict import Count, NotNegativeInt, bound_problems
from qkvflow.data.tokenizer import Ids, Tokenizer
from qkvflow.generate import choice_problems, generate
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
    seed: NotNegativeInt = 0
    """Sampling seed."""


def run(options: Options) -> None:
    """Print the prompt and its continuation, as it comes."""
    problems = bound_problems(options)
    problems += choice_problems(options.temperature, options.top_k, options.top_p)
    if problems:
        raise ConfigError("Nothing can be generated like this:", problems)
    model, tokenizer = load_model(options.checkpoint), read_tokenizer(options.checkpoint)
    prompt = np.asarray(read_prompt(tokenizer, options.prompt), np.int32)
    if options.depth is not None:
        with elapsed(f"sampling the weights at {options.depth} layers"):
            model = unroll(model, options.depth, unit_steps=options.unit_steps)
    shown = ""
    for ids in continuations(model, prompt, options):
        # A character may be made of several tokens: one that is not whole yet waits for the rest.
        text = options.prompt + tokenizer.decode(ids)
        whole = text if len(ids) == options.tokens else text.rstrip("\ufffd")
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
        print(
            f"The tokenizer loses {lost} bytes of the prompt, which it does not know.", file=sys.stderr
        )
    return ids


def continuations(model: LanguageModel, prompt: np.ndarray, options: Options) -> Iterator[np.ndarray]:
    """All new tokens so far, again and again, each time with more of them."""
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
            whole = generate(
                model,
                named,
                count,
                key=k,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
            )
        new = np.asarray(whole.array)[0, len(context) :]
        ids = np.concatenate([ids, new])
        yield ids[len(prompt) :]
