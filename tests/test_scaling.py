"""The worth of a loop: known laws are found again, intervals cover, what has no answer is refused."""

import numpy as np
import pytest

from qkvflow.scaling import LoopLaw, fit_loop_law, phi_interval

WIDTHS = 1e5 * np.array([0.3, 0.6, 1.2, 2.4])
ONCE = np.concatenate([WIDTHS, 0.5 * WIDTHS, 0.5 * WIDTHS, 0.3 * WIDTHS])
LOOP = np.concatenate([0 * WIDTHS, 0.5 * WIDTHS, 0.25 * WIDTHS, 0.4 * WIDTHS])
VISITS = np.repeat([1.0, 2.0, 4.0, 3.0], 4)
MODELS = (ONCE, LOOP, VISITS)
TRUE = LoopLaw(irreducible=1.1, scale=6.0, alpha=0.25, phi=0.45)


def test_the_worth_of_a_loop_by_its_definition():
    assert LoopLaw(1.0, 1.0, 1.0, phi=0.0).size([3.0], [4.0], [8.0]) == 7.0
    assert LoopLaw(1.0, 1.0, 1.0, phi=1.0).size([3.0], [4.0], [8.0]) == 35.0
    assert LoopLaw(1.0, 3.0, 2.0, phi=0.5).loss([1.0], [1.0], [4.0]) == 1.0 + 3.0 / 9.0


@pytest.mark.parametrize("phi", [-0.3, 0.0, 0.45, 1.0, 1.4])
@pytest.mark.parametrize("alpha", [0.12, 0.7])
def test_a_law_without_noise_is_found(phi, alpha):
    true = LoopLaw(1.1, 6.0 * 3.0 ** (alpha * 10), alpha, phi)
    found = fit_loop_law(*MODELS, true.loss(*MODELS))
    assert found.phi == pytest.approx(phi, abs=1e-4)
    assert found.alpha == pytest.approx(alpha, rel=1e-3)
    assert found.irreducible == pytest.approx(1.1, rel=1e-2)
    assert found.scale == pytest.approx(true.scale, rel=1e-2)
    assert found.misfit < 1e-6


def test_a_law_that_misses_says_so():
    bent = TRUE.loss(*MODELS) * np.where(VISITS > 1, 1.0 + 0.05 * np.sin(np.arange(16)), 1.0)
    assert fit_loop_law(*MODELS, bent).misfit > 0.01


def test_intervals_hold_the_true_phi_as_often_as_they_say():
    rng, times = np.random.default_rng(0), 20
    covered = 0
    for draw in range(times):
        losses = TRUE.loss(*MODELS)[:, None] + rng.normal(0.0, 0.004, (16, 5))
        found = phi_interval(*MODELS, losses, confidence=0.8, resamples=40, seed=draw)
        covered += found.low <= TRUE.phi <= found.high
        assert 0.005 < found.half_width < 0.1
    assert 0.6 * times <= covered < times, f"{covered} of {times}"


def test_more_noise_is_a_wider_interval_and_a_seed_gives_the_same_again():
    rng = np.random.default_rng(0)
    noise, clean = rng.normal(size=(16, 5)), TRUE.loss(*MODELS)[:, None]
    few = {"resamples": 20}
    narrow, wide = (phi_interval(*MODELS, clean + s * noise, **few) for s in (0.001, 0.01))
    assert 4 < wide.half_width / narrow.half_width < 25
    assert narrow == phi_interval(*MODELS, clean + 0.001 * noise, **few)
    assert narrow != phi_interval(*MODELS, clean + 0.001 * noise, **few, seed=1)


def changed(once=ONCE, loop=LOOP, visits=VISITS):
    return np.asarray(once, float), np.asarray(loop, float), np.asarray(visits, float)


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (
            tuple(of[:4] for of in MODELS),
            "4 models differ in their sizes or visits; expected at least 5",
        ),
        (changed(np.full(9, 5.0), np.full(9, 1.0), np.full(9, 2.0)), "1 models differ"),
        (changed(visits=np.ones(16)), "no model visits its loop more than once"),
        (changed(loop=np.zeros(16), once=ONCE * np.arange(1, 17)), "no model visits its loop more"),
        (changed(np.full(8, 5.0), np.full(8, 1.0), np.arange(1, 9)), "1 different sizes N_once"),
        (changed(once=ONCE[:3]), "one entry a model, got shapes"),
        (changed(visits=VISITS - 0.5), "visits of at least 1"),
        (changed(once=-ONCE), "sizes of at least 0"),
        (changed(once=0 * ONCE, loop=0 * LOOP), "got one with none"),
    ],
)
def test_models_from_which_nothing_follows_are_a_sentence(models, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_loop_law(*models, np.linspace(2.0, 1.0, len(models[2])))


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        (np.full((16, 1), 1.5), "a model has one seed; expected at least 2"),
        (np.full((15, 3), 1.5), "seeds of each of 16 models, got 15"),
        (np.full((16, 3), np.nan), "losses that are finite and above 0"),
    ],
)
def test_losses_from_which_nothing_follows_are_a_sentence(losses, sentence):
    with pytest.raises(ValueError, match=sentence):
        phi_interval(*MODELS, losses)
    with pytest.raises(ValueError, match="a loss for each of 16 models, got 3"):
        fit_loop_law(*MODELS, [1.0, 2.0, 3.0])
