"""Measure how fast this machine trains and generates, against what you would use instead.

Contestants run in processes of their own that take turns, so that what disturbs the machine disturbs
all of them; leave it alone meanwhile. Ratios can be compared, milliseconds cannot. With torch and
transformers (pip install -e ".[peers]") their programs take part. All of it takes long on two
cores; --only measures a part, and what was measured before stays in the file.

    python -m benchmarks.speed --only step-small generate-1
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.speed import costs, figures, growth, lines, show
from benchmarks.speed.contest import measured
from qkvflow.config import ConfigError, nearest
from qkvflow.extras import pip_line
from qkvflow.files import FileError, read_json, write_json
from qkvflow.memory import keep_freed_memory
from qkvflow.models import MODELS
from qkvflow.provenance import machine, versions
from qkvflow.report.table import to_terminal

ONCE = "once"
"""What is paid once: starting, compiling, memory."""


@dataclass(frozen=True)
class Options:
    """What is measured, and how often."""

    only: tuple[str, ...] = ()
    """Contests to hold, such as step-small generate-1, the axes layers length hidden batch, or once."""
    rounds: int = 11
    """Measurements of every contestant, taken in turns."""
    out: Path = Path("results")
    """Directory for bench.json, bench.png and growth.png."""


def _chosen(only: tuple[str, ...]) -> tuple[list[lines.Contest], list[str], bool]:
    contests = {contest.key: contest for contest in lines.contests()}
    known = [*contests, *growth.AXES, ONCE]
    unknown = [name for name in only if name not in known]
    if unknown:
        problems = [f"there is no {name!r}. {nearest(name, known)}" for name in unknown]
        raise ConfigError("This cannot be measured:", problems)
    wanted = only or tuple(known)
    held = [contest for key, contest in contests.items() if key in wanted]
    return held, [axis for axis in growth.AXES if axis in wanted], ONCE in wanted


def run(options: Options) -> None:
    """Measure, show, and write after every contest."""
    console = Console()
    if options.rounds < 1:
        raise ConfigError("This cannot be measured:", [f"rounds is {options.rounds}; at least 1."])
    contests, axes, once = _chosen(options.only)
    if not lines.peers_are_installed():
        missing = f"torch or transformers is missing: no peers. {pip_line('peers')}"
        console.print(missing, markup=False)
    options.out.mkdir(parents=True, exist_ok=True)
    records = _read(options.out / "bench.json")
    with _progress(console) as progress:
        for contest in contests:
            task = progress.add_task(contest.title, total=options.rounds)
            records["measured"][contest.key] = measured()
            outcome = lines.measure(contest, options.rounds, partial(progress.advance, task))
            records["contests"][contest.key] = record = show.contest_record(outcome)
            console.print(to_terminal(show.contest_table(record)))
            _write(records, options.out)
        for axis in axes:
            task = progress.add_task(f"Growth with {axis}", total=3 * len(growth.AXES[axis]))
            records["measured"][axis] = measured()
            found = growth.grow(axis, 3, partial(progress.advance, task))
            records["growth"][axis] = {g.name: show.growth_record(g) for g in found}
            _write(records, options.out)
        if once:
            records["measured"][ONCE] = measured()
            records["once"] = _measure_once(progress)
            console.print(to_terminal(show.once_table(records["once"])))
            _write(records, options.out)
    if records["growth"]:
        console.print(to_terminal(show.growth_table(records["growth"])))
    console.print(f"Written: {options.out / 'bench.json'} and the figures beside it.", markup=False)


def _measure_once(progress: Progress) -> dict[str, Any]:
    depths = (6, 48)
    task = progress.add_task("Starting and compiling", total=1 + len(depths) * len(MODELS))
    found: dict[str, Any] = costs.startup(runs=7)
    progress.advance(task)
    starts = ("compile_seconds", "second_start_seconds")
    found |= {start: {name: {} for name in MODELS} for start in starts}
    for name in MODELS:
        for depth in depths:
            for start, seconds in zip(starts, costs.compile_seconds(name, depth), strict=True):
                found[start][name][str(depth)] = seconds
            progress.advance(task)
    found["memory"] = costs.memory_table((6, 12, 48))
    return found


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def _read(path: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"contests": {}, "growth": {}, "measured": {}}
    return {**empty, **read_json(path)} if path.is_file() else empty


def _write(records: dict[str, Any], out: Path) -> None:
    records |= {"machine": machine(), "versions": versions()}
    write_json(out / "bench.json", records)
    if records["contests"]:
        figures.draw(records, out / "bench.png")
    if records["growth"]:
        figures.draw_growth(records["growth"], out / "growth.png")


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for; a mistake of the user is one sentence."""
    options = tyro.cli(Options, prog="python -m benchmarks.speed", description=__doc__, args=arguments)
    try:
        run(options)
    except (ConfigError, FileError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    keep_freed_memory()  # before anything starts JAX
    sys.exit(main())
