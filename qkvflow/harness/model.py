"""A model as lm-evaluation-harness asks it: the class that is registered there as `qkvflow`."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from qkvflow.config import ConfigError
from qkvflow.generate import choice_problems
from qkvflow.harness.scoring import Score, scores
from qkvflow.harness.writing import Text, Wish, continue_texts
from qkvflow.models import unroll
from qkvflow.plugins import load_installed, load_plugins
from qkvflow.progress import progress
from qkvflow.train import load_model, read_tokenizer

MOST_TOKENS = 256
"""Tokens of a continuation at the most, where a task does not say."""
_READ = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


@register_model("qkvflow")
class QkvflowLM(LM):
    """A trained model at any depth.

    A text begins after the end-of-text token of the tokenizer, if it has one. If it has none, as bytes
    and characters do not, the first token of a text, which nothing precedes, counts as certain.
    """

    def __init__(
        self,
        checkpoint: str,
        depth: int | None = None,
        unit_steps: bool = False,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        device: str | None = None,
        plugin: str | None = None,
        seed: int = 0,
    ):
        """Read a model, as the harness makes it of --model_args.

        Args:
            checkpoint: directory of a run, of a checkpoint, or of an exported model.
            depth: layers at which the weights are sampled; None is the model's own depth.
            unit_steps: steps of 1 at every depth.
            batch_size: texts at once; auto stands for 8.
            max_batch_size: not used: there is no search for a batch size.
            device: not used: JAX chooses it.
            plugin: a file that the model needs.
            seed: of tokens that are drawn by chance.
        """
        super().__init__()
        load_installed()
        load_plugins([] if plugin is None else [plugin])
        model = load_model(str(checkpoint))
        self.model = model if depth is None else unroll(model, depth, unit_steps=unit_steps)
        self.text_tokenizer = read_tokenizer(str(checkpoint))
        self.batch_size = _size(batch_size)
        self._key = jax.random.key(seed)
        if self.text_tokenizer.vocab_size > self.model.config.vocab_size:
            sizes = f"{self.text_tokenizer.vocab_size} ids, the model {self.model.config.vocab_size}"
            raise ConfigError("The tokenizer does not fit the model:", [f"it has {sizes}."])

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Log-probabilities of continuations of contexts, and whether each is the likeliest."""
        found = self._scores([self._pair(*request.args) for request in requests])
        answers = [(score.log_probability, score.greedy) for score in found]
        return self._kept("loglikelihood", requests, answers)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Log-probabilities of whole texts."""
        pairs = [(self._beginning(), self._ids(request.args[0])) for request in requests]
        answers = [score.log_probability for score in self._scores(pairs)]
        return self._kept("loglikelihood_rolling", requests, answers)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continuations of contexts up to a stop string."""
        texts = [Text(self._prompt(request.args[0]), _wish(request.args[1])) for request in requests]
        self._key, key = jax.random.split(self._key)
        with progress("continuing texts", total=len(texts)) as advance:
            answers = continue_texts(
                self.model, self.text_tokenizer, texts, self.batch_size, key, advance
            )
        return self._kept("generate_until", requests, answers)

    def _scores(self, pairs: list[tuple[np.ndarray, np.ndarray]]) -> list[Score]:
        with progress("scoring texts", total=len(pairs)) as advance:
            return scores(self.model, pairs, self.batch_size, advance)

    def _kept(self, kind: str, requests: Sequence[Any], answers: list[Any]) -> list[Any]:
        """The answers, told to the cache of the harness."""
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial(kind, request.args, answer)
        return answers

    def _ids(self, text: str) -> np.ndarray:
        return np.asarray(self.text_tokenizer.encode(text), np.int32)

    def _beginning(self) -> np.ndarray:
        """What a text begins after."""
        end = self.text_tokenizer.end_of_text
        return np.asarray([] if end is None else [end], np.int32)

    def _pair(self, context: str, continuation: str) -> tuple[np.ndarray, np.ndarray]:
        """A context and its continuation, to which spaces at the end of the context belong.

        Both are read together, as text is, and cut where the context alone would end.
        """
        kept = context.rstrip()
        before = self._ids(kept)
        if not len(before):
            return self._beginning(), self._ids(context + continuation)
        return before, self._ids(context + continuation)[len(before) :]

    def _prompt(self, context: str) -> np.ndarray:
        ids = self._ids(context) if context else self._beginning()
        if not len(ids):
            problem = "a task asks to continue an empty text, and the tokenizer has no end of text."
            raise ConfigError("Nothing can be generated like this:", [problem])
        return ids


def _size(batch_size: int | str) -> int:
    text = str(batch_size)
    if text.startswith("auto"):
        return 8
    if not text.isdecimal() or int(text) < 1:
        problem = f"batch_size is {batch_size!r}; expected a number of texts, at least 1, or auto."
        raise ConfigError("The model cannot be evaluated like this:", [problem])
    return int(text)


def _wish(settings: dict[str, Any]) -> Wish:
    """How a task wants texts to be continued."""
    found: dict[str, Any] = dict(normalize_gen_kwargs(settings, MOST_TOKENS))
    others = sorted(set(found) - set(_READ))
    if others:
        warnings.warn(f"Ignored generation settings: {', '.join(others)}.", stacklevel=3)
    temperature = float(found.get("temperature", 1.0)) if found["do_sample"] else 0.0
    top_k, top_p = found.get("top_k"), found.get("top_p")
    problems = choice_problems(temperature, top_k, top_p)
    if problems:
        raise ConfigError("Nothing can be generated like this:", problems)
    until = tuple(map(str, found["until"]))
    return Wish(until, max(1, found["max_gen_toks"]), temperature, top_k, top_p)
