"""The adaptation experiment, at a size that takes seconds: once each, resumed, summarised, drawn."""

import json
import shutil

import pytest

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.experiments.runner import Watcher
from qkvflow.files import FileError
from qkvflow.finetune.figures import draw_study
from qkvflow.finetune.page import study_page
from qkvflow.finetune.study import Cell, Study, run_study, summarise
from qkvflow.report.page import write_both
from tests.browser import COUNT_PARTS, look_at, needs_chromium
from tests.experiments.support import made_up_failure, made_up_record
from tests.train.support import write_text


class Counter(Watcher):
    def __init__(self):
        self.begun = []

    def begin(self, job):
        self.begun.append(job.arm)
        return ()


def tiny_study(directory, **changes):
    corpora = tuple(str(write_text(directory / f"{n}.txt", seed=i)) for i, n in enumerate("ab"))
    architecture = Gpt2Config(
        hidden_dim=8, num_heads=2, num_layers=2, mlp_ratio=1, time_embed_dim=2, sinusoidal_dim=1
    )
    small = {"pretraining_steps": 2, "steps": 2, "batch_size": 2, "length": 8, "rank": 1, "seeds": 1}
    fields = {"corpora": corpora, "depths": (1, 3), "architecture": architecture, **small}
    return Study(**{**fields, **changes})


def test_the_experiment_runs_once_and_needs_its_bases_no_more(tmp_path):
    study = tiny_study(tmp_path, models=("standard",), methods=("lora",), depths=(3,))
    counter = Counter()
    summary = run_study(study, tmp_path / "out", counter)
    assert len(counter.begun) == 2 + 2 * 2
    assert list(summary["losses"]) == ["a-to-b", "b-to-a"]
    row = summary["losses"]["a-to-b"]["standard-lora"]["3"]
    assert len(row["losses"]) == 1
    assert row["ci95"] is None
    record = json.loads((tmp_path / "out/runs/a-to-b/standard-lora/at-3/seed-0.json").read_text())
    assert record["run"]["start"]["depth"] == 3
    assert record["run"]["architecture"]["adapter"]["method"] == "lora"
    assert record["run"]["data"].endswith("b.txt")
    shutil.rmtree(tmp_path / "out" / "pretrain" / "a" / "standard" / "seed-0")
    again = Counter()
    assert run_study(study, tmp_path / "out", again) == summary
    assert again.begun == []
    with pytest.raises(FileError, match="other settings"):
        run_study(tiny_study(tmp_path, steps=3), tmp_path / "out")


def made_up(losses):
    return {
        Cell("a.txt", "b.txt", model, method, depth, seed): made_up_record(
            f"{model}-{method}", seed, loss + 0.01 * seed + 0.1 / depth
        )
        for (model, method), loss in losses.items()
        for depth in (3, 12)
        for seed in range(3)
    }


def test_losses_are_summarised_and_compared_seed_by_seed(tmp_path):
    losses = {("ode", "full"): 2.0, ("standard", "full"): 2.3}
    summary = summarise(made_up(losses))
    row = summary["losses"]["a-to-b"]["ode-full"]["12"]
    assert row["mean"] == pytest.approx(2.01 + 0.1 / 12)
    assert row["ci95"] > 0
    assert row["before"] == [5.0, 5.0, 5.0]
    (first, _) = summary["differences"]
    assert first["difference"] == pytest.approx(-0.3)
    assert (first["first"], first["second"], first["depth"]) == ("ode", "standard", 3)
    assert first["p_value_holm"] == pytest.approx(2 * first["p_value"])


def test_figures_and_page_open(tmp_path):
    summary = summarise(made_up({("ode", "full"): 2.0, ("standard", "full"): 2.3}))
    (png,) = draw_study(summary, tmp_path / "figures")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    _, text = write_both(study_page(Study(models=("standard",)), summary, [png]), tmp_path)
    said = text.read_text()
    assert "| ode-full | 2.043 +- 0.025 | 2.018 +- 0.025 |" in said
    assert "| ode - standard | a to b | full | 3 | -0.300 |" in said
    assert "![Valid loss over the number of layers, a to b.](figures/a-to-b.png)" in said


@needs_chromium
def test_the_page_opens_in_a_browser_without_errors_or_a_network(tmp_path):
    summary = summarise(made_up({("ode", "full"): 2.0, ("standard", "full"): 2.3}))
    page, _ = write_both(study_page(Study(), summary, draw_study(summary, tmp_path)), tmp_path)
    found = look_at(page, tmp_path, COUNT_PARTS)
    assert found["tables"] == 3
    assert min(found["images"]) > 500


def test_a_failed_run_leaves_a_hole_and_no_more():
    records = made_up({("ode", "full"): 2.0})
    cell = next(iter(records))
    records[cell] = made_up_failure("ode-full", 0)
    summary = summarise(records)
    assert len(summary["losses"]["a-to-b"]["ode-full"]["3"]["losses"]) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"corpora": ("embedded",)}, "two or more of different names"),
        ({"corpora": ("x/a.txt", "y/a.txt")}, "two or more of different names"),
        ({"models": ("standart",)}, "no model 'standart'"),
        ({"depths": (0,)}, "depths is 0"),
    ],
)
def test_a_study_that_cannot_be(changes, words):
    with pytest.raises(ConfigError, match=words):
        Study(**changes)
