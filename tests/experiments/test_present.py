"""Figures, table and page open where they should: as pictures, as TeX, in a browser."""

import dataclasses
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from safetensors.numpy import save_file

from qkvflow.experiments import figures
from qkvflow.experiments.figures import draw_gates
from qkvflow.experiments.gates import gate_use
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import AtDepth, Choice, Failed, Point, finished
from qkvflow.experiments.report import (
    draw_all,
    draw_for_print,
    name_of,
    write_report,
    write_table,
)
from qkvflow.experiments.results import Experiment
from qkvflow.experiments.summary import losses_over_depth
from qkvflow.experiments.tables import over_depth
from qkvflow.models import MODELS as NAMED
from qkvflow.report import figures as drawing
from qkvflow.report.figures import MODELS, appearance, line_style, looks
from tests.experiments.support import (
    check_pdf,
    check_picture,
    made_up_failure,
    made_up_record,
    tiny_fields,
)
from tests.support import COUNT_PARTS, look_at, needs_chromium

MACHINE = ("processor", "cores", "system")
LOSSES = {"standard": (2.34, 2.35, 2.36), "gated": (2.20, 2.21, 2.23), "third": (2.21, 2.19, 2.24)}


@pytest.fixture
def experiment(tmp_path):
    arms = {name: {"model": "standard"} for name in (*LOSSES, "broken")}
    arms["third"]["parameters_of"] = "gated"
    plan = Plan.of(tiny_fields("x.txt", arms=arms, seeds=3))
    records = [
        dataclasses.replace(
            made_up_record(arm, seed, loss, parameters=parameters),
            depths=(AtDepth(1, loss + 0.5, 3.0, 1e5), AtDepth(4, loss - 0.125, 3.0, 1e6)),
        )
        for (arm, losses), parameters in zip(LOSSES.items(), (4000, 1000, 2000), strict=True)
        for seed, loss in enumerate(losses)
    ]
    records.append(made_up_failure("broken", 0))
    choice = Choice(2e-3, True, ((1e-3, 3.0), (2e-3, 2.9), (4e-3, None)))
    tuned = dict.fromkeys(LOSSES, choice)
    rng = np.random.default_rng(0)
    closing = np.array([[1.0], [0.01], [0.01], [0.01]]) * np.ones(8)
    keep_gates(tmp_path, "gated", {"up": rng.uniform(0.5, 1.5, (4, 32)), "down": closing})
    return Experiment(tmp_path, plan, records, tuned, {"2-gram": 2.35, "3-gram": 1.89})


def keep_gates(out, arm, gates, seed=0):
    path = out / "runs" / arm / f"seed-{seed}.gates.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(gates, path)


def test_every_figure_is_a_png_and_a_pdf_with_fonts(experiment, tmp_path):
    names = draw_for_print(experiment, tmp_path / "figures")
    of_the_page = {
        *("efficiency_with_error", "learning_curves", "depth_curves", "forest", "sweep", "gates"),
    }
    assert set(names) == of_the_page | {"statistical_performance", "speed_comparison"}
    for name in names:
        check_picture(tmp_path / "figures" / f"{name}.png")
        check_pdf(tmp_path / "figures" / f"{name}.pdf")
    assert set(draw_all(experiment, tmp_path / "page")) == of_the_page


@pytest.fixture
def kept(monkeypatch):
    """The figures that are drawn, by name."""
    figures_of = {}
    draw = figures.canvas

    @contextmanager
    def keeping(paths, width, height):
        with draw(paths, width, height) as drawn:
            yield drawn
        figures_of[paths[0].stem] = drawn

    for module in (figures, drawing):
        monkeypatch.setattr(module, "canvas", keeping)
    return figures_of


def test_losses_over_depth_have_a_table_and_a_figure(experiment, tmp_path, kept):
    draw_all(experiment, tmp_path / "figures")
    lines = [bar[0].get_xydata() for bar in kept["depth_curves"].axes[0].containers]
    assert [line[:, 0].tolist() for line in lines] == [[1, 2, 4]] * 3
    standard = np.mean(LOSSES["standard"])
    assert np.allclose(lines[0][:, 1], [standard + 0.5, standard, standard - 0.125])
    table = over_depth(losses_over_depth(experiment.records))
    assert table.heads == ("model", "1", "2", "4")
    assert table.rows[0][2].startswith(f"{standard:.4f} +- ")
    page = write_report([experiment], "A title")[1].read_text()
    assert "Loss over depth" in page and "depth_curves.png" in page


def test_figures_show_seeds_bands_what_is_pareto_optimal_and_the_margin(experiment, tmp_path, kept):
    draw_for_print(experiment, tmp_path / "figures")
    seeds = [points.get_offsets() for points in kept["statistical_performance"].axes[0].collections]
    assert [points[:, 0].tolist() for points in seeds if len(points) == 3] == [
        list(losses) for losses in LOSSES.values()
    ]
    plane = kept["efficiency_with_error"].axes[0]
    best = next(line for line in plane.lines if line.get_label() == "Pareto-optimal")
    assert best.get_xydata().tolist() == [[1000, np.mean(LOSSES["gated"])]]
    losses, differences = kept["learning_curves"].axes
    bands = [band for band in losses.collections if isinstance(band, PolyCollection)]
    assert [band.get_paths()[0].vertices[:, 1].max() for band in bands] == pytest.approx(
        [max(of) + 0.5 for of in LOSSES.values()]
    )
    mean = np.mean(np.subtract(LOSSES["gated"], LOSSES["standard"]))
    assert differences.lines[0].get_ydata() == pytest.approx([mean, mean])
    forest = kept["forest"].axes[0]
    assert [tick.get_text() for tick in forest.get_yticklabels()] == ["gated", "third"]
    margin = forest.patches[0].get_extents().transformed(forest.transData.inverted())
    assert (margin.x0, margin.x1) == pytest.approx((-0.01, 0.01))
    crosses = [points for points in kept["sweep"].axes[0].collections if len(points.get_offsets())]
    assert [points.get_offsets()[0, 0] for points in crosses] == [4e-3] * 3, "what failed is marked"
    ticks = [tick.get_text() for tick in kept["sweep"].axes[0].get_xticklabels(which="both")]
    assert ticks == ["0.001", "0.002", "0.004"], "the rates that were tried, and no others"
    image = kept["gates"].axes[0].images[0]
    assert "gated, seed 0" in kept["gates"].axes[-1].get_ylabel()
    shades = [rgb_to_grey(image.cmap(x)[:3]) for x in np.linspace(0, 1, 50)]
    assert min(np.diff(shades)) > 0, "closed and open gates are told apart in grey"


def test_gates_of_the_best_arm_are_drawn_and_those_of_unfinished_runs_do_not_count(
    experiment, tmp_path, kept
):
    for arm, seed in (("standard", 1), ("broken", 0), ("gated", 7)):
        keep_gates(tmp_path, arm, {"up": np.ones((4, 8))}, seed)
    seeds = {arm: list(runs) for arm, runs in experiment.gates.items()}
    assert seeds == {"standard": [1], "gated": [0]}
    draw_all(experiment, tmp_path / "figures")
    assert "gated, seed 0" in kept["gates"].axes[-1].get_ylabel()


def test_error_bars_are_the_intervals(experiment, tmp_path, kept):
    draw_for_print(experiment, tmp_path / "figures")
    summary = experiment.summary
    wanted = [(row.loss.mean, row.loss.half_width) for row in summary.values()]
    for name, axis in (("statistical_performance", 0), ("efficiency_with_error", 1)):
        bars = [error_bar(bar, axis) for bar in kept[name].axes[0].containers]
        assert bars == [pytest.approx((mean, mean - half, mean + half)) for mean, half in wanted]
    forest = [error_bar(bar, 0) for bar in kept["forest"].axes[0].containers]
    tests = {test.second: test.found for test in experiment.tests if test.first == "standard"}
    for found, arm in zip(forest, ("gated", "third"), strict=True):
        of = tests[arm]
        assert found == pytest.approx((-of.difference, -of.interval.high, -of.interval.low))


def error_bar(container, axis):
    """Its middle and its ends along an axis."""
    middle, _, (lines,) = container
    ends = lines.get_segments()[0][:, axis]
    return middle.get_xydata()[0, axis], ends.min(), ends.max()


def test_what_axes_are_called_is_not_cut_off(experiment, tmp_path, kept):
    draw_for_print(experiment, tmp_path / "figures")
    for name, drawn in kept.items():
        FigureCanvasAgg(drawn).draw()
        whole = drawn.get_window_extent()
        for axes in drawn.axes:
            below, beside = (of.label.get_window_extent() for of in (axes.xaxis, axes.yaxis))
            assert whole.x0 <= below.x0 <= below.x1 <= whole.x1, f"{name}: {axes.get_xlabel()}"
            assert whole.y0 <= beside.y0 <= beside.y1 <= whole.y1, f"{name}: {axes.get_ylabel()}"


def test_of_one_seed_no_interval_is_spoken_of(tmp_path, kept):
    plan = Plan.of(tiny_fields("x.txt", seeds=1))
    records = [made_up_record("standard", 0, 2.0), made_up_record("gated", 0, 2.1)]
    draw_for_print(Experiment(tmp_path, plan, records), tmp_path / "figures")
    panes = [kept[name].axes[-1] for name in ("statistical_performance", "learning_curves")]
    labels = [
        *(axes.get_xlabel() for axes in panes),
        kept["efficiency_with_error"].axes[0].get_ylabel(),
    ]
    assert all("one seed" in label and "interval" not in label for label in labels), labels


def test_what_is_far_apart_at_first_does_not_hide_the_differences_at_the_end(tmp_path, kept):
    plan = Plan.of(tiny_fields("x.txt", seeds=1))
    records = [
        with_curve(made_up_record("standard", 0, 2.0), (10, 3.0), (20, 3.0), (50, 2.5), (100, 2.0)),
        with_curve(made_up_record("gated", 0, 2.1), (10, 9.0), (20, 9.0), (50, 2.6), (100, 2.1)),
    ]
    draw_all(Experiment(tmp_path, plan, records), tmp_path / "figures")
    low, high = kept["learning_curves"].axes[1].get_ylim()
    assert low < 0.0 < 0.1 < high < 0.2


def with_curve(record, *points):
    """The same record with other evaluations."""
    curve = tuple(Point(step, step / 10, loss) for step, loss in points)
    return dataclasses.replace(record, curve=curve)


def test_arms_with_other_steps_are_drawn_over_operations(tmp_path, kept):
    plan = Plan.of(tiny_fields("x.txt", seeds=1))
    longer = with_curve(made_up_record("gated", 0, 2.1, steps=200), (0, 5.0), (50, 2.6), (200, 2.1))
    costs = dataclasses.replace(longer.costs, training_flops=3 * 10**12)
    records = [made_up_record("standard", 0, 2.0), dataclasses.replace(longer, costs=costs)]
    draw_all(Experiment(tmp_path, plan, records), tmp_path / "figures")
    (losses,) = kept["learning_curves"].axes
    assert losses.get_xlabel() == "training FLOP (one seed)"
    drawn = [line.get_xdata().tolist() for line in losses.lines]
    assert drawn == [[0.5e12, 1e12], [0.75e12, 3e12]]


@pytest.mark.parametrize("largest", [1110, 9000, 20_000, 3_000_000])
def test_sizes_can_be_read_off_however_near_they_are(tmp_path, kept, largest):
    plan = Plan.of(tiny_fields("x.txt", seeds=1))
    records = [
        made_up_record(arm, 0, 2.0, parameters=size)
        for arm, size in (("standard", largest), ("gated", 1000))
    ]
    draw_all(Experiment(tmp_path, plan, records), tmp_path / "figures")
    plane = kept["efficiency_with_error"].axes[0]
    FigureCanvasAgg(kept["efficiency_with_error"]).draw()
    low, high = plane.get_xlim()
    ticks = zip(plane.get_xticks(), plane.get_xticklabels(), strict=True)
    inside = [label.get_text() for at, label in ticks if low <= at <= high]
    assert len(inside) >= 2 and len(set(inside)) == len(inside), inside


def test_lines_of_one_colour_differ():
    styles = [(appearance(i)["color"], str(line_style(i))) for i in range(16)]
    assert len(set(styles)) == 16


def test_a_model_has_one_look_in_whatever_company():
    alone, in_company = looks(["shared"]), looks(["mine", "shared", "yours", "standard"])
    assert alone["shared"] == in_company["shared"] == MODELS.index("shared")
    assert list(in_company) == ["mine", "shared", "yours", "standard"]
    assert len({appearance(i)["color"] for i in in_company.values()}) == 4
    many = looks([*MODELS, *(f"arm_{i}" for i in range(40))])
    assert len({tuple(appearance(i).values()) for i in many.values()}) == len(many)
    assert set(NAMED) <= set(MODELS), "every named model has a look of its own"


def test_the_look_of_a_model_is_that_of_all_figures(experiment, tmp_path, kept):
    draw_for_print(experiment, tmp_path / "figures")
    wanted = appearance(looks(experiment.plan.names)["gated"])["color"]
    row = 1  # of all arms, below the reference
    assert kept["statistical_performance"].axes[0].containers[row][0].get_color() == wanted
    assert kept["efficiency_with_error"].axes[0].containers[row][0].get_color() == wanted
    assert kept["depth_curves"].axes[0].containers[row][0].get_color() == wanted
    assert kept["forest"].axes[0].containers[row - 1][0].get_color() == wanted
    assert kept["sweep"].axes[0].lines[2 * row].get_color() == wanted
    assert kept["learning_curves"].axes[0].lines[row].get_color() == wanted


def test_more_lines_than_can_be_told_apart_are_not_drawn(tmp_path):
    names = [f"arm_{i}" for i in range(figures.MOST_LINES + 1)]
    plan = Plan.of(tiny_fields("x.txt", arms=dict.fromkeys(names), seeds=1, reference="arm_0"))
    records = [sized(made_up_record(name, 0, 2.0 + i / 10), i) for i, name in enumerate(names)]
    tuned = dict.fromkeys(names, Choice(2e-3, False, ((1e-3, 3.0), (2e-3, 2.9))))
    drawn = draw_all(Experiment(tmp_path, plan, records, tuned), tmp_path / "figures")
    assert set(drawn) == {"efficiency_with_error"}


def sized(record, i):
    """A record of a model of another size."""
    costs = dataclasses.replace(record.costs, parameters=1000 + 100 * i)
    return dataclasses.replace(record, costs=costs)


def test_losses_over_sizes_that_hardly_differ_are_drawn_for_print_only(experiment, tmp_path):
    def alike(run):
        return dataclasses.replace(run.costs, parameters=1000 + len(run.arm))

    records = [dataclasses.replace(run, costs=alike(run)) for run in finished(experiment.records)]
    alike_ones = dataclasses.replace(experiment, records=records)
    assert "efficiency_with_error" not in draw_all(alike_ones, tmp_path / "page")
    assert "efficiency_with_error" in draw_for_print(alike_ones, tmp_path / "print")


def test_gates_that_change_their_sign():
    linear = np.array([[2.0, -2.0, 1.0], [-2.0, 0.1, 0.01]])
    found = gate_use([{"up": linear}])["up"]
    assert found.closed == pytest.approx(2 / 6)
    assert found.over_depth == pytest.approx(np.sqrt(linear.var(axis=0).mean()) / np.abs(linear).mean())


def test_the_names_of_many_arms_stand_beside_what_is_drawn(tmp_path, kept):
    for count in (6, 12):
        names = [f"arm_{i}" for i in range(count)]
        plan = Plan.of(tiny_fields("x.txt", arms=dict.fromkeys(names), seeds=1, reference="arm_0"))
        records = [sized(made_up_record(name, 0, 2.0 + i / 10), i) for i, name in enumerate(names)]
        tuned = dict.fromkeys(names, Choice(2e-3, False, ((1e-3, 3.0), (2e-3, 2.9))))
        draw_all(Experiment(tmp_path, plan, records, tuned), tmp_path / "figures")
        for name in ("efficiency_with_error", "learning_curves", "sweep"):
            drawn = kept[name]
            FigureCanvasAgg(drawn).draw()
            legend = drawn.axes[0].get_legend() if count == 6 else drawn.legends[0]
            assert {text.get_text() for text in legend.get_texts()} >= set(names)
            if count == 12:
                assert legend.get_window_extent().x0 >= drawn.axes[0].get_window_extent().x1


def test_arms_are_told_apart_in_grey():
    """By their markers, and mostly by how dark their colours are."""
    styles = [appearance(i) for i in range(8)]
    assert len({style["marker"] for style in styles}) == 8
    assert len({(style["marker"], style["color"]) for style in styles}) == 8
    grey = sorted(rgb_to_grey(to_rgb(style["color"])) for style in styles[:6])
    assert min(np.diff(grey)) > 0.02, grey


def rgb_to_grey(rgb):
    """Rec. 601."""
    return float(np.dot(rgb, (0.299, 0.587, 0.114)))


def test_a_figure_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "some.png"
    path.write_bytes(b"the one before")

    def break_off(self, file, **_):
        (path.open("wb") if file == path else file).write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", break_off)
    with pytest.raises(OSError, match="disk full"), figures.figure([path], 3.0, 2.0):
        pass
    assert path.read_bytes() == b"the one before"


def test_gates_that_never_change_can_be_drawn(tmp_path):
    draw_gates({"up": np.ones((3, 5))}, "gated, seed 0", tmp_path)
    assert (tmp_path / "gates.png").stat().st_size > 1000


def test_the_table_compiles_where_there_is_a_tex(experiment, tmp_path):
    path = tmp_path / "results_table.tex"
    write_table(experiment.summary, path)
    table = path.read_text()
    assert table.count(r"\\") == 1 + len(LOSSES)
    assert "2.2133" in table
    tex = shutil.which("pdflatex") or shutil.which("tectonic")
    if tex is None:
        pytest.skip("no TeX here: the table was not compiled")
    whole = tmp_path / "whole.tex"
    whole.write_text(rf"\documentclass{{article}}\begin{{document}}{table}\end{{document}}")
    subprocess.run([tex, str(whole)], cwd=tmp_path, check=True, capture_output=True)


def test_markdown_and_html_say_the_same(experiment):
    page, text = write_report([experiment], "A <title> & more")
    markdown, html = text.read_text(), page.read_text()
    for words in (
        "cannot go below p = 0.25",
        "3-gram",
        "2.3500",
        "Failed: broken, seed 0",
        "75%",
        "parameters of gated",
        "Not compared, since fewer than two seeds of both finished: standard - broken",
    ):
        assert words in markdown, words
        assert words in html, words
    assert "A &lt;title&gt; &amp; more" in html
    for figure in re.findall(r"!\[.*\]\((.*)\)", markdown):
        assert (text.parent / figure).is_file()


def test_what_runs_noted_stands_on_the_page_once(experiment):
    """The text that a tokenizer loses, and what else somebody should know."""
    own = [f"note {i}" for i in range(12)]
    records = [
        dataclasses.replace(record, notes=("The tokenizer loses <b>.", *own[: 12 * (not i)]))
        for i, record in enumerate(finished(experiment.records))
    ]
    _, text = write_report([dataclasses.replace(experiment, records=records)], "title")
    shown, runs = text.read_text(), len(records)
    assert shown.count(f"Noted by {runs} of {runs} runs: The tokenizer loses &lt;b&gt;") == 1
    assert shown.count("Noted by 1 of ") == 9
    assert "3 more notes are in the records." in shown


def test_times_of_several_machines_are_said_to_be_such(experiment):
    records = list(finished(experiment.records))
    _, text = write_report([experiment], "title")
    assert "of several machines" not in text.read_text()
    of = records[0].arm
    for i, record in enumerate(records):
        if record.arm == of:
            machine = {**record.origin.machine, "processor": "Slow"}
            origin = dataclasses.replace(record.origin, machine=machine)
            records[i] = dataclasses.replace(record, origin=origin)
    _, text = write_report([dataclasses.replace(experiment, records=records)], "title")
    assert f"are of several machines: {of} on Slow (" in text.read_text()


def test_pages_have_no_script_of_data(experiment):
    """Errors, machines, texts and titles are of others; where they stand in a page they are text."""
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    records = [
        dataclasses.replace(
            record,
            run={**record.run, "data": hostile, "tokenizer": hostile},
            origin=dataclasses.replace(record.origin, machine=dict.fromkeys(MACHINE, hostile)),
            **({"error": hostile} if isinstance(record, Failed) else {}),
        )
        for record in experiment.records
    ]
    page, text = write_report([dataclasses.replace(experiment, records=records)], hostile)
    for file, own in ((page, 1), (text, 0)):
        shown = file.read_text()
        assert shown.count("<script") == own and "onerror=alert(1)>" not in shown
        assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 4


def test_several_experiments_stand_on_one_page(experiment, tmp_path):
    changed = [made_up_record("gated", seed, loss) for seed, loss in enumerate((3.0, 4.0, 5.0))]
    other = dataclasses.replace(experiment, out=tmp_path / "equal_parameters", records=changed)
    page, text = write_report([experiment, other], "All", tmp_path / "both")
    assert page.parent == tmp_path / "both"
    lines = text.read_text().splitlines()
    headings = [line for line in lines if line.startswith("# ")]
    assert headings == ["# All", f"# {name_of(experiment.out)}", "# equal parameters"]
    assert lines.index("## Side by side") < lines.index(headings[1])
    assert "| standard | 2.3500 +- 0.0248 |  |" in lines
    assert "| gated | 2.2133 +- 0.0379 | 4.0000 +- 2.4841 |" in lines
    assert lines.count("## Loss") == 2
    pictures = re.findall(r"!\[.*\]\((.*)\)", text.read_text())
    assert all((text.parent / picture).is_file() for picture in pictures)
    two = {"efficiency_with_error", "learning_curves"}
    shown = {1: two | {"depth_curves", "forest"}, 2: two}  # the other has one arm, at one depth
    for number, names in shown.items():
        assert {Path(p).stem for p in pictures if f"/{number}-" in p} == names


@needs_chromium
def test_the_page_opens_in_a_browser_without_errors_or_a_network(experiment, tmp_path):
    page, _ = write_report([experiment], "A page")
    found = look_at(page, tmp_path, COUNT_PARTS)
    assert len(found["images"]) == 6, "one of them over depth"
    assert min(found["images"]) > 500
    assert found["tables"] == 8


@needs_chromium
@pytest.mark.parametrize(
    "asks", ['<img src="http://other.host/x.png">', '<script src="x.js"></script>']
)
def test_a_page_that_asks_for_something_else_would_be_noticed(tmp_path, asks):
    page = tmp_path / "page.html"
    page.write_text(f"<html><head><title></title></head><body>{asks}</body></html>")
    with pytest.raises(AssertionError):
        look_at(page, tmp_path, COUNT_PARTS)
