"""The ledger: every number in the documents is one that a command of this project measured.

A table in a document stands below a comment that names the report that it is from,
`<!-- results/finetune/report.md: From embedded to wikitext-2 -->`, and is that report's. Reports are
what the records say. Sentences with numbers are in tests/ledger/ once more, with the numbers taken
from the results; a number that is in neither is a mistake.
"""

import json
import re
from datetime import datetime

import pytest

from qkvflow.cli.compare import Options, make_plan
from qkvflow.config.strict import from_dict
from qkvflow.experiments.plan import read_plan
from qkvflow.experiments.present import page_of_several
from qkvflow.experiments.report import experiment_page
from qkvflow.experiments.results import read_experiment
from qkvflow.experiments.runner import chosen
from qkvflow.files import read_json
from qkvflow.finetune.page import study_page
from qkvflow.finetune.study import Study, read_records, summarise
from qkvflow.report.page import to_markdown
from tests.ledger import SENTENCES
from tests.ledger.measured import RESULTS, ROOT

TABLE = re.compile(r"<!-- (\S+): (.+?) -->\n+((?:\|.*\n)+)")
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)")
NUMBER = re.compile(r"\d+\.\d+|\d{1,3}(?:,\d{3})+|\b(?!(?:80|95|99)%)\d+%|\b\d+e-?\d+")
"""With a point, thousands or an exponent, or in percent, but for levels of confidence."""
EXPERIMENTS = sorted(path.parent for path in RESULTS.glob("*/statistics_summary.json"))
TABLES = [name for name in SENTENCES if TABLE.search((ROOT / name).read_text())]
"""Documents with tables of reports."""


@pytest.mark.parametrize("out", EXPERIMENTS, ids=lambda out: out.name)
def test_the_report_of_an_experiment_is_what_its_records_say(out):
    experiment = read_experiment(out)
    results = experiment.results
    assert results.summary == read_json(out / "statistics_summary.json")
    assert results.tests + results.on_test == read_json(out / "significance_tests.json")
    report = (out / "report.md").read_text()
    page = experiment_page(
        report.splitlines()[0].removeprefix("# "),
        experiment,
        figures(out),
    )
    assert to_markdown(page, out) == report


def figures(out):
    return {picture.stem: picture for picture in (out / "figures").glob("*.png")}


def test_the_page_of_the_three_tables_is_what_their_records_say():
    """Equal steps, equal parameters, equal training FLOPs."""
    outs = [RESULTS / name for name in ("laptop", "laptop-parameters", "laptop-flops")]
    report = RESULTS / "three-tables" / "report.md"
    title = report.read_text().splitlines()[0].removeprefix("# ")
    page = page_of_several(
        title, [read_experiment(out) for out in outs], [figures(out) for out in outs]
    )
    assert to_markdown(page, report.parent) == report.read_text()


@pytest.mark.parametrize("out", EXPERIMENTS, ids=lambda out: out.name)
def test_arms_were_trained_at_what_their_sweeps_chose(out):
    """And all sweeps of an experiment are of one size."""
    experiment = read_experiment(out)
    if experiment.plan.sweep is None:
        return
    sweeps = {
        arm.name: [read_json(path) for path in (out / "sweep" / arm.name).glob("lr-*.json")]
        for arm in experiment.plan.arms
    }
    found = chosen([record for records in sweeps.values() for record in records])
    assert json.loads(json.dumps(found)) == experiment.tuned
    assert {arm: entry["learning_rate"] for arm, entry in found.items()} == {
        arm: row["learning_rate"] for arm, row in experiment.results.summary.items()
    }
    sizes = {tuple(rate for rate, _ in entry["sweep"]) for entry in found.values()}
    assert sizes == {experiment.plan.sweep.learning_rates}
    steps = {(r["run"]["steps"], r["seed"]) for records in sweeps.values() for r in records}
    assert steps == {(experiment.plan.sweep.steps, experiment.plan.sweep.seed)}


def test_the_longer_runs_have_the_learning_rates_that_the_laptop_setting_chose():
    found = read_json(RESULTS / "laptop" / "tuned.json")
    for arm in read_experiment(RESULTS / "long").plan.arms:
        assert arm.run.optimizer.learning_rate == found[arm.name]["learning_rate"]


PLANS = {name: read_plan(name) for name in ("laptop", "seeds")}
PLANS["laptop-parameters"] = (
    read_plan("laptop").with_reference("time_indexed_mlp").matched("parameters")
)
PLANS["laptop-flops"] = read_plan("laptop").matched("flops")


@pytest.mark.parametrize("name", PLANS)
def test_results_are_those_of_the_plan_that_comes_with_the_package(name):
    there, here = read_experiment(RESULTS / name).plan, PLANS[name]
    assert [(arm, there.arm(arm.name)) for arm in there.arms if arm != here.arm(arm.name)] == []
    for what in ("seeds", "sweep", "margin", "test", "reference"):
        assert getattr(there, what) == getattr(here, what)


def test_the_comparison_is_that_of_the_command_without_options():
    assert read_experiment(RESULTS / "compare").plan == make_plan(Options())


def test_the_comparison_takes_less_than_five_minutes():
    records = read_experiment(RESULTS / "compare").records
    begun, ended = (
        choose(datetime.fromisoformat(record[when]) for record in records)
        for choose, when in ((min, "began"), (max, "ended"))
    )
    assert (ended - begun).total_seconds() < 300
    assert records[0]["machine"]["cores"] == 2


def test_the_report_of_the_adaptation_is_what_its_records_say():
    out = RESULTS / "finetune"
    study = from_dict(Study, read_json(out / "study.json"))
    summary = summarise(read_records(study, out))
    assert summary == read_json(out / "summary.json")
    pictures = [out / "figures" / f"{direction}.png" for direction in summary["losses"]]
    assert all(picture.is_file() for picture in pictures)
    assert to_markdown(study_page(study, summary, pictures), out) == (out / "report.md").read_text()


def test_the_evaluation_in_the_readme_is_what_the_command_printed():
    """results/first.txt: the README's `qkvflow evaluate`, after its `qkvflow train`."""
    printed = (RESULTS / "first.txt").read_text()
    assert f"```text\n{printed}```" in (ROOT / "README.md").read_text()


def test_every_document_is_in_the_ledger():
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert set(SENTENCES) == documents | {"README.md", "API.md"}


@pytest.mark.parametrize("document", TABLES)
def test_tables_are_those_of_the_reports(document):
    for path, heading, table in TABLE.findall((ROOT / document).read_text()):
        report = (ROOT / path).read_text()
        sections = dict(re.findall(r"^## (.+)\n\n((?:.|\n(?!## ))*)", report, re.MULTILINE))
        assert table in sections[heading] + "\n"


def sentences(document):
    return [flat(template.format(*values())) for template, values in SENTENCES[document]]


def flat(text):
    """Text on one line: where a line ends does not matter."""
    return " ".join(text.split())


@pytest.mark.parametrize("document", SENTENCES)
def test_sentences_say_what_was_measured(document):
    text = flat((ROOT / document).read_text())
    assert not [said for said in sentences(document) if said not in text]


@pytest.mark.parametrize("document", SENTENCES)
def test_no_other_number_is_in_the_documents(document):
    text = flat(TABLE.sub("", (ROOT / document).read_text()))
    for said in sentences(document):
        text = text.replace(said, "")
    assert not NUMBER.findall(CODE.sub("", text))
