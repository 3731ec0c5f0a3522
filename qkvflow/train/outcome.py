"""How a run ended, and what can be asked of it: its curve, a figure, its model, text."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from qkvflow.config import RunConfig
from qkvflow.config.yaml_files import recorded_run
from qkvflow.data import Tokenizer
from qkvflow.generate import generate
from qkvflow.models import LanguageModel
from qkvflow.train.metrics import Record, read_metrics
from qkvflow.train.run_files import load_model, read_tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVE = ("train", "valid", "final")
"""Kinds of records that are the curve."""
_POINT = ("kind", "seed", "step", "seconds", "tokens", "flops", "loss")


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Examples:
        outcome = train(RunConfig(steps=200), "runs/first")
        outcome.plot()
        print(outcome.generate("The river", 100))
    """

    out: Path
    step: int
    finished: bool
    """Whether all steps were taken; else it was asked to stop, and goes on when started again."""
    asked_to_stop: bool = False
    """Be it after the last step: what comes after this run should not begin."""
    there_before: bool = False
    """Whether it had finished before, so that nothing was run."""

    @property
    def run(self) -> RunConfig:
        """The settings of the run."""
        return recorded_run(self.out / "run.yaml")

    @property
    def history(self) -> list[Record]:
        """The curve as plain numbers, a table for each point: kind, step, seconds, tokens, flops, loss.

        The kind is train, valid or final; of several seeds each point has its seed. pandas makes a
        data frame of it.
        """
        records = read_metrics(self.out / "metrics.jsonl")
        curve = (record for record in records if record["kind"] in CURVE)
        return [{name: record[name] for name in _POINT if name in record} for record in curve]

    @cached_property
    def model(self) -> LanguageModel:
        """The trained model; of a run that goes on, that of its newest checkpoint."""
        return load_model(self.out)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text for the model."""
        return read_tokenizer(self.out)

    def generate(self, prompt: str, max_new_tokens: int = 200, *, seed: int = 0, **how: Any) -> str:
        """A text and how the model goes on with it; `how` is that of `qkvflow.generate.generate`."""
        how = {"temperature": 0.8, "key": jax.random.key(seed), **how}
        return generate(self.model, prompt, max_new_tokens, tokenizer=self.tokenizer, **how)

    def plot(self) -> "Figure":
        """The curve as a figure, which a notebook shows."""
        from qkvflow.report.figures import canvas  # late: matplotlib takes a second to import
        from qkvflow.report.history import draw_history

        with canvas([], 6.4, 3.4) as drawn:
            draw_history(drawn.subplots(), self.history, self.run.model)
        return drawn
