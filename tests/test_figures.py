"""The figures of README.md and docs/: what they show is what results say."""

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from docs import figures, quantities
from qkvflow.statistics import summarise

MODELS = ("standard", "shared", "time_indexed_mlp", "standard_narrow", "time_indexed_ssm")


@pytest.fixture
def axes():
    return Figure().subplots()


def points(axes):
    """Every point with an error bar, by its label where it has one."""
    return [tuple(float(bar[0].get_data()[i][0]) for i in (0, 1)) for bar in axes.containers]


def test_parameters_and_losses_are_those_of_the_records(axes):
    figures.over_parameters(axes)
    names = axes.get_legend_handles_labels()[1]
    assert set(MODELS) < set(names)
    for name, (parameters, loss) in zip(names, points(axes), strict=True):
        assert parameters == quantities.parameters("laptop", name)
        assert loss == quantities.loss("laptop", name)


def test_operations_are_first_those_of_equal_steps_and_then_equal_ones(axes):
    figures.over_operations(axes)
    drawn = points(axes)
    assert len(drawn) == 2 * (len(MODELS) + 1)
    assert drawn[0] == (
        quantities.operations("laptop", "standard"),
        quantities.loss("laptop", "standard"),
    )
    equal = [operations for operations, _ in drawn[1::2]]
    assert max(equal) < 1.01 * min(equal)
    assert drawn[7][1] == quantities.loss("laptop-flops", "standard_narrow")


def test_where_depths_were_measured_the_loss_is_drawn_over_them(axes, monkeypatch):
    losses = {"shared": {2: summarise([1.5, 1.6]), 8: summarise([1.2, 1.3])}}
    monkeypatch.setattr(figures, "losses_over_depth", lambda records: losses)
    monkeypatch.setattr(figures, "DEPTHS", "laptop")
    monkeypatch.setattr(figures, "AT_ANY_DEPTH", ("shared",))
    figures.over_depth(axes)
    assert axes.containers[0][0].get_xydata().tolist() == [
        [2, pytest.approx(1.55)],
        [8, pytest.approx(1.25)],
    ]


def test_the_committed_figure_is_what_would_be_drawn_today(tmp_path):
    figures.draw_models(tmp_path / "models.png")
    here, there = (matplotlib.image.imread(of / "models.png") for of in (tmp_path, figures.OUT))
    assert here.shape == there.shape, "run make figures"
    changed = (np.abs(here - there) > 0.5).any(-1).mean()
    assert changed < 1e-4, f"{changed:.2%} of docs/figures/models.png has changed: run make figures"


def test_methods_of_higher_order_are_nearer_to_the_solution():
    exact = figures.solve(figures._slope, 0.1, 400, figures.rk4)[-1]
    errors = [
        abs(figures.solve(figures._slope, 0.1, layers, step)[-1] - exact)
        for step in (figures.euler, figures.heun, figures.rk4)
        for layers in (8, 16)
    ]
    orders = np.log2(np.array(errors[::2]) / errors[1::2])
    assert orders == pytest.approx([1, 2, 4], abs=0.6), orders


@pytest.mark.parametrize("name", ["weight.svg", "field.svg", "integrator.svg"])
def test_the_pictures_have_no_background_and_are_the_same_every_time(name, tmp_path):
    figures.FIGURES[name](tmp_path / name)
    drawn = (tmp_path / name).read_text()
    figures.FIGURES[name](tmp_path / name)
    assert (tmp_path / name).read_text() == drawn
    assert "fill: #ffffff" not in drawn
