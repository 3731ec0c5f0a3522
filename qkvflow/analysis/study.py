"""What an analysis is: what it computes of a model, its main numbers, its figures, its text.

study = ANALYSES["lyapunov"]().study(subject)
study.write(Path("analysis"), "lyapunov")
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qkvflow.analysis.corpus import Look, Sample, over_windows
from qkvflow.config.registry import Registry
from qkvflow.data import Tokenizer
from qkvflow.models import LanguageModel
from qkvflow.report.page import Item, Picture

Line = tuple[str, str]
"""A quantity and its value, in words."""


@dataclass(frozen=True)
class Subject:
    """What is studied: a model, at some depths, on a text and perhaps on windows of a corpus."""

    model: LanguageModel
    times: np.ndarray
    """Depths at which weights are looked at."""
    ids: np.ndarray
    """The text, [T]."""
    labels: tuple[str, ...]
    """The text of every token."""
    position: int
    """The output position whose sensitivity is wanted, from 0 on."""
    windows: np.ndarray | None = None
    """[N, length] of a corpus."""
    circuits: tuple[str, ...] | None = None
    """Circuits whose spectra are wanted; None: all that the model has."""
    count: int = 8
    """Leading exponents."""
    refine: int = 8
    """Passes of refinement of the exponents."""
    probes: int | None = 64
    """Directions of the sensitivity; None or the model's width: all of them, exactly."""
    initial: LanguageModel | None = None
    """The model before training; None where it is not known."""


@dataclass(frozen=True)
class Study:
    """What was found."""

    arrays: dict[str, np.ndarray]
    numbers: dict[str, Any]

    def with_corpus(self, windows: np.ndarray | None, look: Look) -> "Study":
        """With what `look` finds in windows of a corpus, where there are some."""
        if windows is None:
            return self
        found = over_windows(windows, look)
        arrays = {f"corpus.{name}": sample.values for name, sample in found.items()}
        means = {name: {"mean": s.mean, "ci95": s.half_width} for name, s in found.items()}
        corpus = {"windows": len(windows), "length": windows.shape[1], **means}
        return Study(self.arrays | arrays, self.numbers | {"corpus": corpus})

    def sample(self, name: str) -> Sample | None:
        """What the windows of a corpus say of a quantity, where there are some."""
        values = self.arrays.get(f"corpus.{name}")
        return None if values is None else Sample(values)

    def write(self, directory: Path, name: str) -> None:
        """NAME.npz with all arrays and NAME.json with the main numbers."""
        np.savez_compressed(directory / f"{name}.npz", **self.arrays)  # type: ignore[arg-type]
        text = json.dumps(plain(self.numbers), indent=1, ensure_ascii=False, allow_nan=False)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


class Analysis(ABC):
    """One way to look into a model; `ANALYSES` has them by name."""

    heading: ClassVar[str]
    """Above its part of the page."""
    reading: ClassVar[str] = ""
    """How its main numbers are read."""

    def check(self, subject: Subject) -> object:
        """Raise a `ConfigError` that says why it does not apply to a model, before any work."""
        return None

    @abstractmethod
    def study(self, subject: Subject) -> Study:
        """Compute arrays and numbers."""

    @abstractmethod
    def main_numbers(self, study: Study) -> list[Line]:
        """A few lines that the command prints and that its part of the page ends with."""

    def found(self, study: Study) -> str:
        """What was found, in a sentence that the page begins with; nothing: no sentence."""
        return ""

    def text(self, study: Study, tokenizer: Tokenizer) -> list[Item]:
        """What stands before the figures."""
        return []

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        """Draw the figures into a directory."""
        return []


ANALYSES = Registry[type[Analysis]]("analysis", home="qkvflow.analysis.studies")
"""By name, in the order of the page. Each is a file that draws; matplotlib is imported with it."""


def plain(value: Any) -> Any:
    """A value as JSON has it: lists, and null for what is no number."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
