"""What an analysis is: what it computes of a model, its main numbers, its figures, its text.

study = ANALYSES["lyapunov"]().study(subject)
study.write(Path("analysis"), "lyapunov")
"""

import dataclasses
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
from qkvflow.progress import progress
from qkvflow.report.page import Picture

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


@dataclass(frozen=True)
class Study:
    """What was found."""

    arrays: dict[str, np.ndarray]
    numbers: dict[str, Any]

    def write(self, directory: Path, name: str) -> None:
        """NAME.npz with all arrays and NAME.json with the main numbers."""
        np.savez_compressed(directory / f"{name}.npz", **self.arrays)  # type: ignore[arg-type]
        text = json.dumps(plain(self.numbers), indent=1, ensure_ascii=False, allow_nan=False)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


class Analysis(ABC):
    """One way to look into a model; `ANALYSES` has them by name."""

    heading: ClassVar[str]
    """Above its part of the page."""

    def check(self, subject: Subject) -> object:
        """Raise a `ConfigError` that says why it does not apply to a model, before any work."""
        return None

    @abstractmethod
    def study(self, subject: Subject) -> Study:
        """Compute arrays and numbers."""

    @abstractmethod
    def main_numbers(self, study: Study) -> list[Line]:
        """A few lines that the command prints and the page begins with."""

    def text(self, study: Study, tokenizer: Tokenizer) -> list[str]:
        """HTML before the figures."""
        return []

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        """Draw the figures into a directory."""
        return []


ANALYSES = Registry[type[Analysis]]("analysis", home="qkvflow.analysis.studies")
"""By name, in the order of the page. Each is a file that draws; matplotlib is imported with it."""


def plain(value: Any) -> Any:
    """A value as JSON has it: lists, and null for what is no number."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def add_corpus(study: Study, windows: np.ndarray | None, look: Look) -> Study:
    """The study of a text with what a sample of a corpus says, where there is one."""
    if windows is None:
        return study
    with progress("windows", total=len(windows)) as advance:
        found = over_windows(windows, look, advance)
    sample = {
        "windows": len(windows),
        "length": windows.shape[1],
        **{name: {"mean": s.mean, "ci95": s.half_width} for name, s in found.items()},
    }
    arrays = {f"corpus.{name}": sample.values for name, sample in found.items()}
    return Study(study.arrays | arrays, study.numbers | {"corpus": sample})


def with_interval(sample: Sample, form: str) -> str:
    """The mean over windows and its interval."""
    count, mean = len(sample.values), float(sample.mean)
    if count < 2:
        return f"{mean:{form}} (one window)"
    return f"{mean:{form}} +- {float(sample.half_width):.3f} ({count} windows, 95%)"
