"""Figures, table and page open where they should: as pictures, as TeX, in a browser."""

import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from safetensors.numpy import save_file

from qkvflow.experiments.figures import _look, draw_gates, frontier
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.present import draw_all, write_report, write_table
from qkvflow.experiments.results import Experiment
from tests.browser import COUNT_PARTS, look_at, needs_chromium
from tests.experiments.support import made_up_record, tiny_fields

LOSSES = {"standard": (2.34, 2.35, 2.36), "gated": (2.20, 2.21, 2.23), "third": (2.21, 2.19, 2.24)}


@pytest.fixture
def experiment(tmp_path):
    arms = {name: {"model": "standard"} for name in (*LOSSES, "broken")}
    arms["third"]["parameters_of"] = "gated"
    plan = Plan.of(tiny_fields("x.txt", arms=arms, seeds=3))
    records = [
        made_up_record(arm, seed, loss, parameters=parameters)
        for (arm, losses), parameters in zip(LOSSES.items(), (4000, 1000, 2000), strict=True)
        for seed, loss in enumerate(losses)
    ]
    records.append(made_up_record("broken", 0, None, status="failed"))
    tuned = {
        arm: {"learning_rate": 2e-3, "inside": True, "sweep": [[1e-3, 3.0], [2e-3, 2.9], [4e-3, None]]}
        for arm in LOSSES
    }
    gates = tmp_path / "runs" / "gated" / "seed-0.gates.safetensors"
    gates.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    closing = np.array([[1.0], [0.01], [0.01], [0.01]]) * np.ones(8)
    save_file({"up": rng.uniform(0.5, 1.5, (4, 32)), "down": closing}, gates)
    return Experiment(tmp_path, plan, records, tuned, {"2-gram": 2.35, "3-gram": 1.89})


def test_every_figure_is_a_png_and_a_pdf_with_fonts(experiment, tmp_path):
    drawn = draw_all(experiment, tmp_path / "figures")
    assert set(drawn) == {
        "statistical_performance",
        "efficiency_with_error",
        "speed_comparison",
        "learning_curves",
        "forest",
        "sweep",
        "gates",
    }
    for path in drawn.values():
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", content[16:24])
        assert width > 800
        assert height > 150
        pdf = path.with_suffix(".pdf").read_bytes()
        assert pdf.startswith(b"%PDF-")
        assert pdf.rstrip().endswith(b"%%EOF")
        assert b"/FontFile2" in pdf, "TrueType fonts are embedded"


def test_the_frontier_is_what_nobody_beats_in_both():
    rows = {
        "small": {"params": 1, "loss_mean": 3.0, "failed_seeds": 0},
        "worse": {"params": 2, "loss_mean": 3.5, "failed_seeds": 0},
        "lucky": {"params": 2, "loss_mean": 0.5, "failed_seeds": 3},
        "middle": {"params": 3, "loss_mean": 2.0, "failed_seeds": 0},
        "large": {"params": 9, "loss_mean": 1.0, "failed_seeds": 0},
        "vast": {"params": 99, "loss_mean": 1.0, "failed_seeds": 0},
    }
    assert frontier(rows) == ["small", "middle", "large"]


def test_arms_are_told_apart_in_grey():
    """By their markers, and mostly by how dark their colours are."""
    looks = [_look(i) for i in range(8)]
    assert len({(look["marker"], look["color"]) for look in looks}) == 8
    grey = sorted(rgb_to_grey(to_rgb(look["color"])) for look in looks[:6])
    assert min(np.diff(grey)) > 0.02, grey


def rgb_to_grey(rgb):
    """Rec. 601."""
    return float(np.dot(rgb, (0.299, 0.587, 0.114)))


def test_gates_that_never_change_can_be_drawn(tmp_path):
    draw_gates({"up": np.ones((3, 5))}, "gated, seed 0", tmp_path)
    assert (tmp_path / "gates.png").stat().st_size > 1000


def test_the_table_compiles_where_there_is_a_tex(experiment, tmp_path):
    path = tmp_path / "results_table.tex"
    write_table(experiment.results, path)
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
    page, text = write_report(experiment, "A <title> & more")
    markdown, html = text.read_text(), page.read_text()
    for words in (
        "cannot go below p = 0.25",
        "3-gram",
        "2.3500",
        "Failed: broken, seed 0",
        "75%",
        "parameters of gated",
    ):
        assert words in markdown, words
        assert words in html, words
    assert "A &lt;title&gt; &amp; more" in html
    for figure in re.findall(r"!\[.*\]\((.*)\)", markdown):
        assert (text.parent / figure).is_file()
    assert "http" not in html.replace("http-equiv", ""), "the page needs no network"


@needs_chromium
def test_the_page_opens_in_a_browser_without_errors_or_a_network(experiment, tmp_path):
    page, _ = write_report(experiment, "A page")
    found = look_at(page, tmp_path, COUNT_PARTS)
    assert len(found["images"]) == 7
    assert min(found["images"]) > 500
    assert found["tables"] == 7
