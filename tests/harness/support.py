"""A language model whose probabilities are known: a Markov chain of order one, written into weights."""

import json
from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from qkvflow.config import Gpt2Config
from qkvflow.data import CharTokenizer, MarkovLanguage
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.models.storage import save_model
from tests.support import random_model

LANGUAGE = MarkovLanguage(order=1, symbols=8, seed=3)
TOKENIZER = CharTokenizer.fit(["abcdefgh"])
IMPOSSIBLE = -1e4
POSITIONS = 24
CHAIN = LANGUAGE.transition


def markov_model(name="time_indexed_mlp"):
    """Logits are the logarithms of the chain, at every depth: the parts of all layers add nothing.

    Embeddings are unit vectors, which the RMS norm makes 1 / sqrt(1 / E + epsilon) long, and the output
    projection takes that back.
    """
    config = Gpt2Config(
        flavour="llama",
        hidden_dim=16,
        num_heads=2,
        num_layers=2,
        vocab_size=9,
        max_position_embeddings=POSITIONS,
        time_embed_dim=4,
        sinusoidal_dim=2,
    )
    model = random_model(name, config)
    width, size = config.hidden_dim, config.vocab_size
    logs = np.full((width, size), IMPOSSIBLE)
    logs[1:9, 1:] = np.log(CHAIN)
    length = 1 / np.sqrt(1 / width + config.norm_epsilon)
    arrays = {
        path: jnp.zeros_like(array) if ".out." in path or ".down." in path else array
        for path, array in arrays_of(model).items()
    }
    arrays["transformer.wte.weight"] = jnp.eye(size, width)
    arrays["transformer.ln_f.weight"] = jnp.ones(width)
    arrays["lm_head.weight"] = jnp.asarray(logs / length, jnp.float32)
    return with_arrays(model, arrays)


def saved(directory, model=None, tokenizer=TOKENIZER):
    """The directory of a model with its tokenizer."""
    save_model(model or markov_model(), directory, json.dumps(tokenizer.to_dict()))
    return directory


def log_probability(before, text):
    """Of a text that follows another, in nats, by the chain; nothing precedes the first symbol."""
    whole = [ord(symbol) - ord("a") for symbol in before + text]
    steps = list(pairwise(whole))[max(len(before) - 1, 0) :]
    return float(sum(np.log(CHAIN[one, other]) for one, other in steps))


def likeliest(text, count):
    """The likeliest continuation of a text, symbol by symbol."""
    state, said = ord(text[-1]) - ord("a"), []
    for _ in range(count):
        state = int(np.argmax(CHAIN[state]))
        said.append(chr(ord("a") + state))
    return "".join(said)
