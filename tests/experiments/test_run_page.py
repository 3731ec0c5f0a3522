"""The page of one run: by the command, of a run that is finished or not, of several seeds."""

import json
import re
import shutil

import pytest

from qkvflow.cli.main import main
from qkvflow.config import write_run
from tests.experiments.support import check_picture
from tests.support import COUNT_PARTS, look_at, needs_chromium
from tests.train.support import tiny_run, trained_base


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return trained_base(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(base, tmp_path):
    return shutil.copytree(base, tmp_path / "first_run")


SMALL = ["--prompt", "weights ", "--tokens", "6", "--seed", "3", "--temperature", "0.5"]


def final_of(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "final"][-1]


def test_the_page_has_all_of_a_run(run, capsys):
    assert main(["report", "--run", str(run), *SMALL]) == 0
    assert f"Written: {run}/report.html and {run}/report.md" in capsys.readouterr().out
    text, final = (run / "report.md").read_text(), final_of(run)
    assert text.startswith("# Run first run\n")
    assert f"time_indexed_mlp reaches {final['loss']:.4f} nats per token" in text
    assert "on the whole valid split after 12 steps." in text
    assert "This is one run: whether another model" in text
    assert f"--checkpoint {run}" in text
    rows = re.findall(r"^\| (\d+) \| 0 \| \d+ \| ([\d.]+) \|.* \| (all|\d+) \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "4", "8", "12", "12"]
    assert rows[-1][1:] == (f"{final['loss']:.4f}", "all")
    assert "one layer's weights, gated by depth. 2 layers of width 8 with 2 heads" in text
    assert "12 steps of 4 x 8 tokens" in text and "peak learning rate 0.01 after 2 steps" in text
    assert re.search(
        r"\n    weights .*\n\n6 tokens after 'weights ', at temperature 0.5, seed 3;", text
    )
    assert re.search(r"^\| parameters \| [\d,]+ \|$", text, re.MULTILINE)
    assert len(re.findall(r"^\| [1-6]-gram \|", text, re.MULTILINE)) == 6
    check_picture(run / "figures" / "curve.png")


@needs_chromium
def test_the_page_opens_in_a_browser_without_errors_or_a_network(run, tmp_path):
    assert main(["report", "--run", str(run), *SMALL, "--no-ngrams"]) == 0
    found = look_at(run / "report.html", tmp_path, COUNT_PARTS)
    assert found["tables"] == 2 and len(found["images"]) == 1


def test_n_grams_may_be_left_out_and_the_page_may_lie_elsewhere(run, tmp_path):
    before = sorted(run.rglob("*"))
    out = tmp_path / "elsewhere"
    assert main(["report", "--run", str(run), *SMALL, "--no-ngrams", "--out", str(out)]) == 0
    assert "-gram" not in (out / "report.md").read_text()
    assert sorted(run.rglob("*")) == before


def test_a_run_that_is_not_finished_says_so(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["step"] <= 8]
    (run / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    assert main(["report", "--run", str(run), *SMALL, "--no-ngrams"]) == 0
    text = (run / "report.md").read_text()
    assert "on 64 tokens of the valid split after 8 steps of 12; the run is not finished." in text


def test_several_seeds_share_a_page(run):
    """Their models lie side by side; the first one writes."""
    write_run(tiny_run("text.txt", seeds=2), run / "run.yaml")
    shutil.copytree(run / "final", run / "seed-0")
    shutil.rmtree(run / "final")
    (run / "final").mkdir()
    shutil.move(run / "seed-0", run / "final" / "seed-0")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    twice = [{**line, "seed": seed} for line in lines for seed in (0, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in twice))
    assert main(["report", "--run", str(run), *SMALL, "--no-ngrams"]) == 0
    text = (run / "report.md").read_text()
    assert len(re.findall(r"^\| 12 \| [01] \|", text, re.MULTILINE)) == 4


def test_what_is_no_run_is_a_sentence(run, tmp_path, capsys):
    assert main(["report", "--run", str(tmp_path / "nothing")]) == 2
    assert "is no run: it " in capsys.readouterr().err
    assert main(["report", "--run", str(run), "--temperature", "-1"]) == 2
    assert "temperature -1.0" in capsys.readouterr().err
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n")
    assert main(["report", "--run", str(run), "--no-ngrams"]) == 2
    assert "has no evaluation yet" in capsys.readouterr().err
