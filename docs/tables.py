"""Tables of the documents, and what commands printed, for the expressions of docs/source."""

import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from docs import results
from docs.quantities import Interval, difference, interval, loss, operations, parameters, steps, width
from qkvflow.cli.compare import result_table, title_of
from qkvflow.experiments.records import finished
from qkvflow.report.table import Table, to_markdown, to_terminal
from qkvflow.statistics import Sample


def table(experiment: str, heading: str, first: int | None = None) -> str:
    """The table of a report below a heading, or its first rows; a comment says where it is from."""
    found = results.named(results.tables(experiment), heading, f"table of {experiment}")
    shown = to_markdown(dataclasses.replace(found, rows=found.rows[:first]))
    return f"<!-- results/{experiment}/report.md: {heading} -->\n{shown}"


def _rows(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Every arm of an experiment against one of them


def against(experiment: str, reference: str, *names: str) -> str:
    """Rows of these arms, or of all: parameters, loss, difference."""
    return _rows(
        [
            (
                f"`{name}`",
                f"{parameters(experiment, name):,}",
                *_loss_and_difference(experiment, name, reference),
            )
            for name in names or results.experiment(experiment).summary
        ]
    )


def at_equal_size(experiment: str, reference: str) -> str:
    """Rows of arms: width, parameters, operations over those of the reference, loss, difference."""
    whole = operations(experiment, reference)
    return _rows(
        [
            (
                *(f"`{name}`", str(width(experiment, name)), f"{parameters(experiment, name):,}"),
                f"{operations(experiment, name) / whole:.0%}",
                *_loss_and_difference(experiment, name, reference),
            )
            for name in results.experiment(experiment).summary
        ]
    )


def at_equal_cost(experiment: str, reference: str) -> str:
    """Rows of arms: steps, loss, difference."""
    return _rows(
        [
            (
                f"`{name}`",
                f"{steps(experiment, name):,}",
                *_loss_and_difference(experiment, name, reference),
            )
            for name in results.experiment(experiment).summary
        ]
    )


def _loss_and_difference(experiment: str, name: str, reference: str) -> tuple[str, str]:
    """An arm's loss, and by how much it is above that of the reference."""
    if name == reference:
        return f"{loss(experiment, name):.3f}", ""
    ends = interval(experiment, name, reference)
    return (
        f"{loss(experiment, name):.3f}",
        f"{difference(experiment, name, reference):+.3f} ({ends:+.3f})",
    )


# What `make bench` and benchmarks/step_parts.py measured


def times(contest: str, name: str, against: str) -> float:
    """The time of one contestant over that of another."""
    return _finding(contest, name, against)["ratio"]


def bound(contest: str, name: str, against: str) -> float:
    """What that ratio is promised to be at most."""
    return _finding(contest, name, against)["at_most"]


def _finding(contest: str, name: str, against: str) -> Mapping[str, Any]:
    contests = results.record("bench.json")["contests"]
    for found in results.named(contests, contest, "contest")["findings"]:
        if (found["name"], found["against"]) == (name, against):
            return found
    raise results.UnknownNameError(f"{contest} has no time of {name} over that of {against}")


def help_seconds() -> float:
    """How long `qkvflow --help` takes."""
    return results.record("bench.json")["once"]["help_seconds"]


def contests() -> str:
    """Rows of all contests with a bound: what, between whom, the bound, the ratio, its quartiles."""
    return _rows(
        [
            (
                contest["title"],
                f"`{found['name']}` / {found['against']}",
                f"{found['at_most']:.2f}",
                f"{found['ratio']:.2f} ({Interval(*found['quartiles']):.2f})",
            )
            for contest in results.record("bench.json")["contests"].values()
            for found in contest["findings"]
            if found["at_most"] is not None
        ]
    )


def compiling() -> str:
    """Rows of all models: seconds to compile 6 and 48 layers, 6 again, streams held for a layer."""
    once = results.record("bench.json")["once"]
    rows = []
    for name, seconds in once["compile_seconds"].items():
        held = {depth: of["streams"] for depth, of in once["memory"][name]["full"].items()}
        a_layer = (held["48"] - held["12"]) / (48 - 12)
        compiled = (*(seconds[depth] for depth in ("6", "48")), once["second_start_seconds"][name]["6"])
        rows.append((f"`{name}`", *(f"{each:.1f} s" for each in compiled), f"{a_layer:.2f}"))
    return _rows(rows)


def growth() -> str:
    """Rows of all axes: the exponent with which the time of a step grows, for each model."""
    rows = []
    for axis, models in results.record("bench.json")["growth"].items():
        values = next(iter(models.values()))["values"]
        exponents = (f"n^{found['exponent']:.2f}" for found in models.values())
        rows.append((f"{axis}, {values[0]} to {values[-1]}", *exponents))
    return _rows(rows)


def share(size: str, part: str) -> float:
    """What a part of a training step takes of it, alone."""
    return results.named(results.record("step_parts.json")[size], part, "part of a step")


# Circuits over depth, fine-tuning


def circuit_slopes(*models: str) -> str:
    """Rows of these models and their circuits: growth over depth, small on two texts, laptop."""
    small = results.record("finetune-bases/magnitude_over_depth.json")
    laptop = results.record("laptop/magnitude_over_depth.json")
    rows = []
    for model in models:
        found = [small.get(f"{model}.{text}") for text in ("embedded", "wikitext-2")]
        found.append(results.named(laptop, model, "model"))
        for circuit in ("qk", "ov"):
            ends = [of and of[circuit]["end"] for of in found]
            cells = [f"{end['mean']:+.2f} +- {end['ci95']:.2f} " if end else "" for end in ends]
            rows.append(f"| `{model}` | {circuit.upper()} | {'| '.join(cells)}|")
    return "\n".join(rows)


def adapted(text: str) -> str:
    """The losses of all models that are adapted to a text, or trained on it: rows of MODEL-METHOD."""
    found = _losses_over_depth(text)
    depths = next(iter(found.values()))
    rows = tuple(
        (name, *(f"{of.mean:.3f} +- {of.half_width:.3f}" for of in losses.values()))
        for name, losses in found.items()
    )
    return to_markdown(Table(("model", *(f"{depth} layers" for depth in depths)), rows))


def gains_of_pretraining(layers: int) -> Interval:
    """The least and the largest gain of an adapted model over one from scratch, from a depth on."""
    gains = [
        found[f"{name.rsplit('-', 1)[0]}-scratch"][depth].mean - loss.mean
        for found in map(_losses_over_depth, ("wikitext-2", "embedded"))
        for name, losses in found.items()
        for depth, loss in losses.items()
        if depth >= layers and not name.endswith("-scratch")
    ]
    return Interval(min(gains), max(gains))


def _losses_over_depth(text: str) -> dict[str, dict[int, Sample]]:
    """By MODEL-METHOD and layers: the arms of results/finetune are called MODEL.METHOD.LAYERS.TEXT."""
    found: dict[str, dict[int, Sample]] = {}
    for name, row in results.experiment("finetune").summary.items():
        model, method, depth, target = name.split(".")
        if target == text:
            found.setdefault(f"{model}-{method}", {})[int(depth)] = row.loss
    return found


# What commands printed


def comparison() -> str:
    """The last table that `qkvflow compare` printed of results/compare."""
    experiment = results.experiment("compare")
    run = finished(experiment.records)[0].run
    title = title_of(run["steps"], run["batch_size"], run["length"])
    text = io.StringIO()
    shown = result_table(experiment.summary, experiment.baselines, title)
    Console(width=80, file=text).print(to_terminal(shown))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def printed(name: str) -> str:
    """What a command printed, kept as a file under results/."""
    return (results.RESULTS / name).read_text().rstrip("\n")


# What benchmarks/time_to_loss.py and benchmarks/drafts.py measured


def race(name: str, what: str) -> float:
    """Of a contestant of the race to a loss its minutes, its steps, or their learning rate."""
    of = results.record("time_to_loss.json")["contestants"][name]
    return {"minutes": (of["seconds"] or 0.0) / 60, "steps": of["curve"][-1][0], "rate": of["rate"]}[
        what
    ]


def race_ratio() -> float:
    """Our time over that of the fastest peer."""
    return results.record("time_to_loss.json")["ratio"]


def drafts_gain(temperature: float) -> float:
    """The tokens per second with the best drafts, of those without."""
    rows = results.record("drafts.json")["rows"]
    return max(row["ratio"] for row in rows if row["temperature"] == temperature)


def early_stops() -> str:
    """Rows of bounds, and of runs with fewer layers: layers per token, loss, tokens per second."""
    record = results.record("early.json")
    stopped = [
        (
            f"within {row['bound']:g}",
            f"{row['evaluated_layers']:.1f}",
            f"{row['loss']:.3f}",
            f"{row['ratio']:.2f}",
        )
        for row in record["rows"]
    ]
    fewer = [
        (f"all tokens, {row['layers']} layers", f"{row['layers']:.1f}", f"{row['loss']:.3f}", "")
        for row in record["fewer_layers"]
    ]
    return _rows(stopped + fewer)


def drafts() -> str:
    """Rows of temperatures, layers and tokens of a draft: tokens per second, and what stood."""
    return _rows(
        [
            (
                *(f"{row['temperature']:g}", f"{row['depth']}", f"{row['draft_tokens']}"),
                f"{row['ratio']:.2f}",
                f"{row['acceptance']:.0%}",
            )
            for row in results.record("drafts.json")["rows"]
        ]
    )


# What benchmarks/levanter_*.py measured


def levanter_kills(what: str) -> float:
    """A number of the runs whose processes were killed; of kills, how many."""
    found = results.named(results.record("levanter_kills.json"), what, "number of the kills")
    return len(found) if isinstance(found, list) else found


def levanter_run(what: str) -> float:
    """A number of the run of a model of 100M parameters."""
    return results.named(results.record("levanter.json"), what, "number of the run")


def levanter_memory(*devices: int) -> str:
    """Rows of models and sizes: width, millions of parameters, GB of a device by their number."""
    return _rows(
        [
            (
                *(f"`{row['model']}`", row["size"], str(row["width"])),
                f"{row['parameters'] / 1e6:.0f}",
                *(f"{row['with_gradient'][str(n)] / 1e9:.2f}" for n in devices),
            )
            for row in results.record("levanter_memory.json")["rows"]
        ]
    )


def levanter_cells() -> str:
    """Rows of the cells that XLA was asked for: counted and planned, in GB."""
    return _rows(
        [
            (
                *(f"`{cell['model']}`", cell["size"], str(cell["devices"])),
                *(f"{cell[what] / 1e9:.4f}" for what in ("counted", "held", "beside")),
            )
            for cell in results.record("levanter_memory.json")["cells"]
        ]
    )


def levanter_whole() -> float:
    """The largest share of parameters that every device has."""
    rows = results.record("levanter_memory.json")["rows"]
    return max(row["whole"] / row["parameters"] for row in rows)


def jax_version() -> str:
    """The version of JAX that is pinned beside Levanter."""
    pins = (results.ROOT / "requirements-levanter.txt").read_text()
    (version,) = re.findall(r"^jax==(.+)$", pins, re.MULTILINE)
    return version
