"""The main numbers of a study in words: what the command prints and the page begins with."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from qkvflow.analysis.corpus import Sample
from qkvflow.analysis.studies import Study

Line = tuple[str, str]
CIRCUITS = {"qk": "QK", "ov": "OV", "mlp": "feed-forward", "ssm": "state space"}


def main_numbers(study: Study) -> list[Line]:
    """A few lines, each a quantity and its value."""
    return {
        "spectra": _spectra,
        "lyapunov": _lyapunov,
        "trajectory": _trajectory,
        "modulation": _modulation,
    }[study.name](study)


def _spectra(study: Study) -> list[Line]:
    lines = []
    for name, numbers in study.numbers["circuits"].items():
        magnitude = numbers["magnitude"]
        text = f"{magnitude['mean']:.3g}; over depth {change_in_words(magnitude)}"
        lines.append((f"mean |eigenvalue|, {CIRCUITS[name]}", text))
    ranks = study.numbers["depth_rank"]
    most = max(ranks, key=lambda name: ranks[name]["basis"])
    times = len(study.arrays["times"])
    text = f"{ranks[most]['basis']} of {times} ({most}; 99% of its squared weights)"
    return [*lines, ("basis matrices that a map needs, at most", text)]


def change_in_words(trend: Mapping[str, Any]) -> str:
    """What a size does over depth."""
    if not trend["slope"]:
        return "constant"
    text = f"{trend['relative_slope']:+.0%}"
    if trend["spearman"] is None:
        return text
    return f"{text}, rank correlation {trend['spearman']:+.2f} (p {trend['p_value']:.2g})"


def _lyapunov(study: Study) -> list[Line]:
    numbers, tokens = study.numbers, study.arrays["token_exponents"]
    row, errors = np.asarray(numbers["sensitivity"]), np.asarray(numbers["sensitivity_error"])
    position = numbers["position"]
    most = int(np.argmax(np.where(np.arange(len(row)) == position, -1.0, row)))
    exact = "exact" if not errors.any() else f"standard errors up to {errors.max():.2g}"
    lines = [
        ("largest exponent of the sequence", f"{numbers['largest']:+.3f} per unit of depth"),
        ("its change in the last pass", f"{numbers['change_in_last_pass']:.1g}"),
        ("largest exponent of a token", f"{tokens.min():+.3f} to {tokens.max():+.3f}"),
        (f"position {position} answers to itself by", f"{row[position]:.3g} ({exact})"),
        ("most to another token", f"{row[most]:.3g} (position {most}, {numbers['tokens'][most]!r})"),
    ]
    if "corpus" in numbers:
        sample = Sample(study.arrays["corpus.exponents"][:, 0])
        lines.append(("largest exponent, corpus", _with_interval(sample, "+.3f")))
    return lines


def _trajectory(study: Study) -> list[Line]:
    numbers = study.numbers
    first, last = numbers["norm"][0], numbers["norm"][-1]
    lines = [
        ("length of x, first to last", f"{first:.3g} to {last:.3g}"),
        ("turn in a layer, mean", f"{np.mean(numbers['turn']):.1f} degrees"),
        ("loss by the lens, first to last", f"{numbers['loss'][0]:.3f} to {numbers['loss'][-1]:.3f}"),
        ("predictions settle at depth, mean", f"{numbers['settled_mean']:.2f}"),
    ]
    if "corpus" in numbers:
        sample = Sample(study.arrays["corpus.loss"][:, -1])
        lines.append(("loss at depth 1, corpus", _with_interval(sample, ".3f")))
    return lines


def _modulation(study: Study) -> list[Line]:
    spreads = study.numbers["spread"]
    most, least = max(spreads, key=spreads.__getitem__), min(spreads, key=spreads.__getitem__)
    return [
        ("spread of modulators, most", f"{spreads[most]:.1%} ({most})"),
        ("spread of modulators, least", f"{spreads[least]:.1%} ({least})"),
    ]


def _with_interval(sample: Sample, form: str) -> str:
    count, mean = len(sample.values), float(sample.mean)
    if count < 2:
        return f"{mean:{form}} (one window)"
    return f"{mean:{form}} +- {float(sample.half_width):.3f} ({count} windows, 95%)"
