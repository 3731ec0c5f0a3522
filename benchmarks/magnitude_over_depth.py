"""Do attention circuits grow with depth, as Tong et al. (ICLR 2025) find? In an experiment's models.

Run with `python benchmarks/magnitude_over_depth.py results/laptop` or `... results/finetune-bases`,
for all runs in there whose trained model is at hand: models are not committed but lie in seed-0/final
beside the record seed-0.json once `qkvflow experiment run` has ended. Takes a minute,
prints a table and writes magnitude_over_depth.json and .png into that directory.

For every arm, seed and circuit: the mean |eigenvalue| in each layer, and its slope over depth relative
to its mean (1: it would grow by its own mean from the first depth to the last). The same of the models
before their first step, since a curve may rise by the way it begins.
"""

import json
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from qkvflow.analysis import circuits_of, eigenvalues, trend
from qkvflow.analysis.spectra import mean_magnitudes
from qkvflow.config import RunConfig
from qkvflow.config.yaml_files import read_yaml
from qkvflow.files import read_json
from qkvflow.nn.time_embed import layer_times
from qkvflow.report.figures import appearance, canvas, line_style, looks
from qkvflow.statistics import t_interval
from qkvflow.train import load_model
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data

CIRCUITS = ("qk", "ov")


def depths(layers):
    """The times of so many layers."""
    return layer_times(layers).astype(np.float64)


def magnitudes(model):
    """The mean |eigenvalue| of each circuit, one number a layer."""
    found = circuits_of(model, depths(model.config.num_layers), CIRCUITS)
    return {name: mean_magnitudes(eigenvalues(circuit)).tolist() for name, circuit in found.items()}


def before_training(run):
    """The model that a run began with."""
    return Program(run, open_data(run)).model(0)


def slopes(rows):
    """Relative slopes over depth of every seed, their mean and its 95% interval."""
    found = [trend(depths(len(row)), np.array(row)).relative_slope for row in rows]
    half = t_interval(found).half_width if len(found) > 1 else None
    return {"slopes": found, "mean": float(np.mean(found)), "ci95": half}


def measure(out):
    """Magnitudes of all runs by arm, circuit and moment; their slopes beside them."""
    table = {}
    paths = [path for path in out.rglob("seed-*.json") if (path.with_suffix("") / "final").is_dir()]
    for path in track(sorted(paths), "spectra"):
        record = read_json(path)
        run, final = RunConfig.from_dict(record["run"]), path.with_suffix("") / "final"
        for moment, model in {"start": before_training(run), "end": load_model(final)}.items():
            for name, row in magnitudes(model).items():
                moments = table.setdefault(record["arm"], {}).setdefault(name, {})
                moments.setdefault(moment, {"magnitudes": []})["magnitudes"].append(row)
    for moments in (moments for circuits in table.values() for moments in circuits.values()):
        for found in moments.values():
            found |= slopes(found["magnitudes"])
    plan = out / "plan.yaml"
    arms = read_yaml(plan)["arms"] if plan.is_file() else table
    return {arm: table[arm] for arm in arms if arm in table}  # as in the other figures


def show(table):
    """Slopes, mean over seeds and half of the interval."""
    columns = ("arm", "seeds", "circuit", "before training", "after")
    shown = Table(*columns, title="slope over depth / mean")
    for arm, circuits in table.items():
        for name, moments in circuits.items():
            seeds = len(moments["end"]["slopes"])
            shown.add_row(arm, f"{seeds}", name, *map(cell, moments.values()))
    Console().print(shown)


def cell(found):
    """A mean with half of its interval, if it has one."""
    half = "" if found["ci95"] is None else f" +- {found['ci95']:.2f}"
    return f"{found['mean']:+.2f}{half}"


def draw(table, path):
    """Magnitude over depth, one panel a circuit, one line an arm, points its seeds."""
    with canvas([path], 7.2, 4.0) as drawn:
        panels = drawn.subplots(1, len(CIRCUITS))
        for axes, name in zip(panels, CIRCUITS):
            for (arm, circuits), i in zip(table.items(), looks(table).values()):
                rows = np.array(circuits[name]["end"]["magnitudes"])
                times = depths(rows.shape[1])
                look = {**appearance(i), "markersize": 4, "linestyle": line_style(i)}
                axes.plot(times, rows.mean(axis=0), label=arm, **look)
                seeds = np.broadcast_to(times, rows.shape)
                axes.scatter(seeds, rows, s=8, alpha=0.35, color=look["color"], linewidths=0)
            axes.set_yscale("log")
            axes.set_xticks(times, [f"{t:.2g}" for t in times])
            axes.set_xlabel("depth t")
            axes.set_title(f"{name.upper()}, after training", fontsize=9, loc="left")
        panels[0].set_ylabel("mean |eigenvalue| (line: mean, points: seeds)")
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def main(out):
    """Look at the models in a directory."""
    table = measure(out)
    show(table)
    (out / "magnitude_over_depth.json").write_text(json.dumps(table, indent=1) + "\n")
    draw(table, out / "magnitude_over_depth.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
