"""Capacity: what bounds on generalisation see of a model."""

import numpy as np

from qkvflow.analysis.capacity import (
    divergence,
    movements,
    roughness,
    samples_needed,
    stacks,
)
from qkvflow.analysis.study import ANALYSES, Analysis, Line, Study, Subject

SIGMAS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Deviations of random weights for which the divergence is written."""
SHOWN = 0.01
"""The one that is printed."""


@ANALYSES.register("capacity")
class Capacity(Analysis):
    """Dimensions of all layers' weights, distances from the start, PAC-Bayes, roughness over depth."""

    heading = "Capacity"
    reading = (
        "The dimension is that of the set of all layers' weights that the parameters reach. KL is "
        "|w - w0|^2 / (2 sigma^2), of normal weights around the model from those around its start; "
        "below that many independent samples a PAC-Bayes bound says nothing: it ranks models and "
        "certifies none. Roughness is the largest change of a matrix from one layer to the next, times "
        "the number of layers, relative to its size."
    )

    def study(self, subject: Subject) -> Study:
        found, moved = stacks(subject.model), movements(subject.model, subject.initial)
        rough, distance = roughness(subject.model), moved["all"].distance
        bounds = {} if distance is None else {s: divergence(distance, s) for s in SIGMAS}
        numbers = {
            "weights": str(subject.model.config.weights),
            "stacks": {name: vars(stack) for name, stack in found.items()},
            "groups": {name: vars(movement) for name, movement in moved.items()},
            "divergence": {f"{sigma:g}": kl for sigma, kl in bounds.items()},
            "samples": {f"{sigma:g}": samples_needed(kl) for sigma, kl in bounds.items()},
            "roughness": rough,
        }
        columns = np.array([[s.dimension, s.parameters, s.entries] for s in found.values()])
        return Study({"stacks": columns, "roughness": np.array([*rough.values()])}, numbers)

    def main_numbers(self, study: Study) -> list[Line]:
        numbers, (dimension, parameters, entries) = study.numbers, study.arrays["stacks"].sum(axis=0)
        rough = numbers["roughness"]
        most = max(rough, key=rough.__getitem__)
        lines = [
            ("parameters of the layers", f"{parameters:,}"),
            ("dimension of the layers' weights", f"{dimension:,} of {entries:,} entries"),
            ("roughness over depth, most", f"{rough[most]:.3g} ({most})"),
        ]
        for name, group in numbers["groups"].items():
            lines.append((f"norm, {name}", f"{group['norm']:.4g}"))
            if group["distance"] is not None:
                lines.append((f"distance from the start, {name}", f"{group['distance']:.4g}"))
        if numbers["divergence"]:
            key = f"{SHOWN:g}"
            samples = (
                f"{numbers['divergence'][key]:.3g}; says something from {numbers['samples'][key]:,}"
            )
            lines.append((f"KL at sigma = {key}", f"{samples} samples"))
        return lines

    def found(self, study: Study) -> str:
        dimension, _, entries = study.arrays["stacks"].sum(axis=0)
        distance = study.numbers["groups"]["all"]["distance"]
        moved = "" if distance is None else f" Training moved all parameters by {distance:.4g}."
        return (
            f"The weights of all layers have {entries:,} entries, and those that the parameters reach "
            f"form a set of dimension {dimension:,}.{moved}"
        )
