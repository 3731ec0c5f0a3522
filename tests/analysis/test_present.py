"""Samples of a corpus; files, figures and page of an analysis, alive in a browser without a network."""

import dataclasses
import json
import re
import struct
from html import escape as html_of

import numpy as np
import pytest

from qkvflow.analysis import ANALYSES, Sample, Subject, draw_windows
from qkvflow.analysis.present import LIMITS, obstacle, present
from qkvflow.analysis.studies.lyapunov import ALL_ROWS
from qkvflow.analysis.study import plain
from qkvflow.analysis.tokens import opacities, said, strip
from qkvflow.data import CharTokenizer
from qkvflow.nn.time_embed import layer_times
from qkvflow.statistics import t_interval
from tests.support import look_at, needs_chromium, random_model, small_config

TOKENIZER = CharTokenizer.fit(["\n $</>abcde"])
TEXT = "a </b>\n$d$ e"


def subject_of(name="time_indexed_mlp", text=TEXT, **changes):
    config = small_config(vocab_size=TOKENIZER.vocab_size, **changes)
    ids = TOKENIZER.encode(text).astype(np.int32)
    windows = np.random.default_rng(0).integers(1, config.vocab_size, (3, 8)).astype(np.int32)
    return Subject(
        model=random_model(name, config),
        times=layer_times(config.num_layers).astype(np.float64),
        ids=ids,
        labels=tuple(text),
        position=len(ids) - 2,
        windows=windows,
        count=3,
        refine=2,
        probes=None,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All studies of a model, presented; the page holds text that looks like HTML."""
    out = tmp_path_factory.mktemp("analysis")
    subject = subject_of()
    page, studies = present(
        subject, list(ANALYSES), out, TOKENIZER, title="A <model>", notes=["A & b."]
    )
    return out, page, studies


def test_arrays_and_numbers_are_written(whole):
    out, _, studies = whole
    for name, study in studies.items():
        with np.load(out / f"{name}.npz") as arrays:
            assert set(arrays) == set(study.arrays)
            assert all(np.array_equal(arrays[key], study.arrays[key]) for key in arrays)
        numbers = json.loads((out / f"{name}.json").read_text())
        assert numbers == json.loads(json.dumps(plain(study.numbers)))
    spectra = json.loads((out / "spectra.json").read_text())
    assert set(spectra["circuits"]) == {"qk", "ov", "mlp"}
    assert {"over_depth", "slope", "spearman", "p_value"} <= set(spectra["circuits"]["qk"]["magnitude"])
    corpus = json.loads((out / "lyapunov.json").read_text())["corpus"]
    assert (corpus["windows"], len(corpus["exponents"]["ci95"])) == (3, 3)


def test_every_figure_is_a_png_and_a_pdf_with_fonts(whole):
    drawn = sorted((whole[0] / "figures").glob("*.png"))
    assert {path.stem for path in drawn} == {
        "eigenvalues",
        "magnitudes",
        "depth_rank",
        "exponents",
        "token_exponents",
        "sensitivity",
        "sensitivity_by_distance",
        "trajectory",
        "lens",
        "modulation",
    }
    for path in drawn:
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert width > 800, path
        assert height > 400, path
        pdf = path.with_suffix(".pdf").read_bytes()
        assert pdf.rstrip().endswith(b"%%EOF")
        assert b"/FontFile2" in pdf


def test_the_page_needs_nothing_else_and_quotes_text(whole):
    html = whole[1].read_text()
    assert "http" not in html.replace("http-equiv", "")
    assert "A &lt;model&gt;" in html
    assert "A &amp; b." in html
    assert html.count("<figure>") == 10
    head = html[html.index('<section class="conclusion">') : html.index("</section>")]
    assert head.count("<dt>") == len(ANALYSES) and html_of(LIMITS) in head
    assert "nats per token" in head and "the direction that grows most ends" in head
    tables = html.split('<th class="words">quantity</th>')[1:]
    assert len(tables) == len(ANALYSES)
    for name, table in zip(ANALYSES, tables):
        assert html_of(ANALYSES[name].reading) in table, "every number is explained where it stands"
    assert re.search(r"\bNaN\b|\binf\b", html) is None
    assert "</b>" not in html


@needs_chromium
def test_the_page_lives_in_a_browser_without_errors_or_a_network(whole, tmp_path):
    """Pointing at a token shows its row: what JavaScript says is what Python says."""
    _, page, studies = whole
    script = """
        const said = () => document.getElementById("said").textContent;
        const first = said(), spans = document.querySelectorAll("#tokens span");
        spans[4].dispatchEvent(new PointerEvent("pointerenter"));
        const pointed = said(), chosen = document.querySelector("#tokens .chosen").textContent;
        const later = document.querySelectorAll("#tokens .later").length;
        document.getElementById("tokens").dispatchEvent(new PointerEvent("pointerleave"));
        const images = [...document.images].map(image => image.naturalWidth);
        return {first, pointed, chosen, later, left: said(), images};"""
    found = look_at(page, tmp_path, script)
    values = studies["lyapunov"].arrays["sensitivity"]
    assert [found["first"], found["pointed"]] == [said(values[i], TEXT, i) for i in (10, 4)]
    assert found["left"] == found["first"]
    assert (found["chosen"], found["later"]) == ("b", len(TEXT) - 5)
    assert len(found["images"]) == 10
    assert min(found["images"]) > 500


def test_colours_say_how_much():
    row = np.array([0.1, 0.4, 0.0, 2.0, 0.0])
    found = opacities(row, 3)
    assert found[1] == found[3] == max(found)
    assert found[0] == pytest.approx(found[1] / 2)
    assert found[2] == found[4] == 0.0
    assert opacities(np.array([3.0, 0.0]), 0)[1] == 0.0
    assert "itself 2; then “b” (1) 0.4, “a” (0) 0.1" in said(row, "abcde", 3)
    assert "nan" not in strip("ab", np.zeros(2), "exponent")


def test_a_long_text_has_one_row():
    long = dataclasses.replace(subject_of(text="abcd " * 20), windows=None, refine=0)
    assert len(long.ids) > ALL_ROWS
    study = ANALYSES["lyapunov"]().study(long)
    assert study.arrays["sensitivity"].shape == (1, 100)
    assert study.arrays["rows"].tolist() == [98]


@pytest.mark.parametrize("name", ["time_indexed_ssm", "tong_neuralode", "shared"])
def test_every_kind_of_model_can_be_presented(name, tmp_path):
    subject = subject_of(name)
    kinds = [kind for kind in ANALYSES if obstacle(kind, subject) is None]
    assert (name == "shared") == ("modulation" not in kinds)
    of_weights = [kind for kind in kinds if kind in ("spectra", "modulation")]
    page, studies = present(subject, of_weights, tmp_path, TOKENIZER)
    assert page.read_text().count("<figure>") == 3 + ("modulation" in kinds)
    if name == "shared":
        magnitude = studies["spectra"].numbers["circuits"]["qk"]["magnitude"]
        assert (magnitude["slope"], magnitude["spearman"]) == (0.0, None)


IDS = np.arange(103, dtype=np.uint16)


def test_windows_do_not_overlap_and_are_a_matter_of_the_seed():
    windows = draw_windows(IDS, 6, 10)
    assert windows.shape == (6, 10)
    assert windows.dtype == np.int32
    assert len(np.unique(windows)) == 60
    assert np.all(np.diff(windows, axis=1) == 1), "windows are pieces of the text"
    assert np.array_equal(windows, draw_windows(IDS, 6, 10))
    assert not np.array_equal(windows, draw_windows(IDS, 6, 10, seed=1))
    assert len(draw_windows(IDS, 10, 10)) == 10


@pytest.mark.parametrize("count", [0, -1, 11])
def test_windows_that_are_not_there_are_a_sentence(count):
    words = f"windows is {count}; this split of 103 tokens has 10 windows of 10 tokens"
    with pytest.raises(ValueError, match=words):
        draw_windows(IDS, count, 10)


def test_intervals_are_students_over_windows():
    values = np.random.default_rng(0).normal(size=(5, 2, 3))
    sample = Sample(values)
    expected = t_interval(values[:, 1, 2].tolist())
    assert sample.half_width.shape == (2, 3)
    assert sample.half_width[1, 2] == pytest.approx(expected.half_width)
    assert sample.mean[1, 2] == pytest.approx((expected.low + expected.high) / 2)
    assert np.isnan(Sample(values[:1]).half_width).all()


def test_what_is_found_in_windows_is_that_of_each_by_itself():
    model = random_model("time_indexed_mlp", small_config())
    windows = np.random.default_rng(0).integers(0, 13, (3, 6)).astype(np.int32)
    options = {"labels": tuple("abcdef"), "position": 5, "count": 2, "refine": 2, "probes": None}
    subject = Subject(model, np.ones(1), windows[1], windows=windows, **options)
    found = ANALYSES["lyapunov"]().study(subject)
    exponents, by_distance = found.sample("exponents"), found.sample("sensitivity_by_distance")
    assert exponents.values.shape == (3, 2)
    assert np.array_equal(exponents.values[1], found.arrays["exponents"])
    assert np.array_equal(by_distance.values[1], found.arrays["sensitivity"][5, ::-1])
    assert by_distance.mean[0] == by_distance.mean.max()
    seen = ANALYSES["trajectory"]().study(subject)
    assert seen.sample("loss").values.shape == (3, 3)
    assert np.allclose(seen.sample("loss").values[1], seen.arrays["loss"].mean(axis=1))
    assert np.all(seen.sample("settled").values[:, -1] == 1.0)
    assert np.all(np.diff(seen.sample("settled").values, axis=1) >= 0)
    assert ANALYSES["spectra"]().study(subject).sample("eigenvalues") is None
