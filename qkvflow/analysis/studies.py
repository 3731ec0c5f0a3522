"""The four studies of a model: arrays and numbers, without any drawing.

study = STUDIES["lyapunov"](subject)
study.write(Path("analysis"))
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.analysis import corpus
from qkvflow.analysis.circuits import Circuit, circuits_of
from qkvflow.analysis.flow import depths, flow_of, start, states
from qkvflow.analysis.lyapunov import sequence_exponents, token_exponents
from qkvflow.analysis.modulation import modulators, spread
from qkvflow.analysis.sensitivity import sensitivity_rows
from qkvflow.analysis.spectra import (
    depth_ranks,
    eigenvalues,
    mean_magnitudes,
    numerical_range,
    singular_values,
    trend,
)
from qkvflow.analysis.trajectory import lens, path, settled
from qkvflow.models import LanguageModel
from qkvflow.progress import progress

ALL_ROWS = 96
"""Tokens up to which the sensitivity of every position is computed, and not of the chosen one alone."""


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

    name: str
    arrays: dict[str, np.ndarray]
    numbers: dict[str, Any]

    def write(self, directory: Path) -> None:
        """NAME.npz with all arrays and NAME.json with the main numbers."""
        np.savez_compressed(directory / f"{self.name}.npz", **self.arrays)  # type: ignore[arg-type]
        text = json.dumps(plain(self.numbers), indent=1, ensure_ascii=False, allow_nan=False)
        (directory / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


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


def study_spectra(subject: Subject) -> Study:
    """Eigenvalues, singular values, numerical range of every circuit; the depth rank of every map."""
    model, times = subject.model, subject.times
    circuits = circuits_of(model, times, subject.circuits)
    arrays: dict[str, np.ndarray] = {"times": times}
    numbers: dict[str, Any] = {"times": times, "circuits": {}}
    with progress("spectra", total=len(circuits) * len(times)) as advance:
        for name, circuit in circuits.items():
            found = _spectrum(circuit, advance)
            arrays |= {f"{name}.{kind}": values for kind, values in found.items()}
            numbers["circuits"][name] = _summary(times, found)
    ranks = depth_ranks(model, times)
    arrays |= {f"depth_rank.{name}": rank.singular_values for name, rank in ranks.items()}
    numbers["depth_rank"] = {
        name: {"basis": r.basis, "participation": r.participation, "spread": r.spread}
        for name, r in ranks.items()
    }
    return Study("spectra", arrays, numbers)


def _spectrum(circuit: Circuit, advance: Callable[[int], None]) -> dict[str, np.ndarray]:
    """All of a circuit, one time after the other."""
    kinds = {
        "eigenvalues": eigenvalues,
        "singular_values": singular_values,
        "numerical_range": numerical_range,
    }
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
    for i in range(len(circuit.left)):
        one = Circuit(circuit.left[i : i + 1], circuit.right[i : i + 1])
        for kind, function in kinds.items():
            found[kind].append(function(one))
        advance(1)
    return {kind: np.concatenate(values) for kind, values in found.items()}


def _summary(times: np.ndarray, found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Means over heads of what tells the size of a circuit, and how each changes with depth."""
    sizes = {
        "magnitude": mean_magnitudes(found["eigenvalues"]),
        "spectral_norm": found["singular_values"][..., 0].mean(axis=1),
        "numerical_radius": np.abs(found["numerical_range"]).max(axis=-1).mean(axis=1),
    }
    heads = found["eigenvalues"].shape[1]
    summary = {kind: {"over_depth": v, **vars(trend(times, v))} for kind, v in sizes.items()}
    return {"heads": heads, **summary}


def study_lyapunov(subject: Subject) -> Study:
    """Exponents of the sequence and of every token; the sensitivity to every input token."""
    flow, x = flow_of(subject.model), start(subject.model, subject.ids)
    length = len(subject.ids)
    count = min(subject.count, x.size)
    rows = list(range(length)) if length <= ALL_ROWS else [subject.position]
    with progress("exponents", total=length) as advance:
        found = sequence_exponents(flow, x, count=count, refine=subject.refine)
        tokens = token_exponents(flow, x, refine=subject.refine, advance=advance)[:, 0]
    with progress("sensitivity", total=len(rows)) as advance:
        depends = sensitivity_rows(flow, x, rows, probes=subject.probes, advance=advance)
    arrays = {
        "depths": depths(subject.model),
        "exponents": np.asarray(found.values, np.float64),
        "growth": np.asarray(found.growth, np.float64),
        "token_exponents": tokens.astype(np.float64),
        "rows": np.asarray(rows),
        "sensitivity": depends.values,
        "sensitivity_error": depends.errors,
    }
    row = depends.values[rows.index(subject.position)]
    numbers = {
        "exponents": arrays["exponents"],
        "change_in_last_pass": float(found.change),
        "largest": float(found.values[0]),
        "tokens": list(subject.labels),
        "token_exponents": arrays["token_exponents"],
        "position": subject.position,
        "sensitivity": row,
        "sensitivity_error": depends.errors[rows.index(subject.position)],
    }
    if subject.windows is not None:
        look = corpus.dynamics(subject.model, count=count, refine=subject.refine, probes=subject.probes)
        _add_corpus(arrays, numbers, subject.windows, look)
    return Study("lyapunov", arrays, numbers)


def study_trajectory(subject: Subject) -> Study:
    """Norm, angle and speed of the residual stream; the predictions at every depth."""
    model, grid = subject.model, depths(subject.model)
    visited = states(flow_of(model), start(model, subject.ids))
    way, seen = path(np.asarray(visited), grid), lens(model, visited, subject.ids)
    arrays = {"depths": grid, **way._asdict(), **seen._asdict(), "settled": settled(seen.choice, grid)}
    means = ("norm", "turn", "to_end", "speed", "loss", "entropy", "divergence")
    numbers: dict[str, Any] = {
        "depths": grid,
        "tokens": list(subject.labels),
        **{name: arrays[name].mean(axis=1) for name in means},
        "settled": arrays["settled"],
        "settled_mean": float(arrays["settled"].mean()),
    }
    if subject.windows is not None:
        _add_corpus(arrays, numbers, subject.windows, corpus.predictions(model))
    return Study("trajectory", arrays, numbers)


def study_modulation(subject: Subject) -> Study:
    """The modulators of every map, how far they are from constant, and how far the weights are."""
    found = modulators(subject.model, subject.times)
    ranks = depth_ranks(subject.model, subject.times)
    numbers = {
        "times": subject.times,
        "weights": str(subject.model.config.weights),
        "spread": {name: spread(values) for name, values in found.items()},
        "weight_spread": {name: rank.spread for name, rank in ranks.items()},
    }
    return Study("modulation", {"times": subject.times, **found}, numbers)


def _add_corpus(
    arrays: dict[str, np.ndarray], numbers: dict[str, Any], windows: np.ndarray, look: corpus.Look
) -> None:
    """Add what a sample of a corpus says to the arrays and numbers of a text."""
    with progress("windows", total=len(windows)) as advance:
        found = corpus.over_windows(windows, look, advance)
    arrays |= {f"corpus.{name}": sample.values for name, sample in found.items()}
    numbers["corpus"] = {
        "windows": len(windows),
        "length": windows.shape[1],
        **{name: {"mean": s.mean, "ci95": s.half_width} for name, s in found.items()},
    }


STUDIES: dict[str, Callable[[Subject], Study]] = {
    "spectra": study_spectra,
    "lyapunov": study_lyapunov,
    "trajectory": study_trajectory,
    "modulation": study_modulation,
}
