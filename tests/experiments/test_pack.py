"""Packing: a handful of files that say the same, whatever happens in between."""

import dataclasses
import itertools
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkvflow.config import RunConfig
from qkvflow.experiments.pack import pack
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import choices_to_json
from qkvflow.experiments.report import experiment_page, page_of_several
from qkvflow.experiments.results import read_choices, read_experiment, read_sweep, save_plan
from qkvflow.experiments.search import chosen
from qkvflow.experiments.store import loose_gates, loose_path, write_record
from qkvflow.files import FileError, read_json, write_json
from qkvflow.lock import locked
from qkvflow.report.page import to_markdown
from tests.experiments.support import made_up_failure, made_up_record, numbers_of, run_all, tiny_fields

RESULTS = Path(__file__).parents[2] / "results"
ARMS = {"standard": 2.3, "gated": 2.2}
SWEEP = {"learning_rates": [1e-3, 2e-3, 4e-3], "steps": 4}


def places():
    """Where the records of a whole experiment are, and what they are of."""
    runs = {
        f"runs/{arm}/seed-{seed}": (arm, seed, loss + 0.01 * seed, 2e-3)
        for (arm, loss), seed in itertools.product(ARMS.items(), range(2))
    }
    sweep = {
        f"sweep/{arm}/lr-{rate:g}": (arm, 1000, 3.0 + abs(rate - 2e-3), rate)
        for arm, rate in itertools.product(ARMS, SWEEP["learning_rates"])
    }
    return runs | sweep


def write_experiment(out, order=None):
    """An experiment that was never run, its files written in some order."""
    plan = Plan.of(tiny_fields("x.txt", sweep=SWEEP))
    save_plan(plan, out)
    todo = list(places().items())
    random.Random(order).shuffle(todo)
    for place, (arm, seed, loss, rate) in todo:
        write_record(out, place, record(arm, seed, loss, rate))
        if place.startswith("runs/gated"):
            gates = {"up": np.full((2, 3), loss, np.float32), "down": np.ones((2, 2), np.float32)}
            save_file(gates, loose_gates(out, place))
    write_json(out / "tuned.json", choices_to_json(chosen(plan, read_sweep(out))))
    write_json(
        out / "ngram_baselines.json", {"data_digest": "0123456789abcdef", "valid": {"1-gram": 3.2}}
    )
    return out


def record(arm, seed, loss, rate):
    """As a run of the plan would have been recorded."""
    fields = tiny_fields("x.txt")
    made_up = made_up_record(arm, seed, loss)
    run = RunConfig.from_dict({**fields["base"], **fields["arms"][arm], "seed": seed}).to_dict()
    return dataclasses.replace(
        made_up, run={**run, "optimizer": {**run["optimizer"], "learning_rate": rate}}
    )


def said(out):
    """All that an experiment says."""
    experiment = read_experiment(out)
    gates = {
        (arm, seed, name): array.tolist()
        for arm, runs in experiment.gates.items()
        for seed, of in runs.items()
        for name, array in of.items()
    }
    return (
        experiment.records,
        experiment.choices,
        experiment.baselines,
        gates,
        read_sweep(out),
    )


def files(out):
    """Every file by its path, but for locks of the whole experiment."""
    paths = {path.relative_to(out): path for path in out.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in paths.items()
        if not name.parts[0].endswith(".claim")
    }


HANDFUL = {"plan.yaml", "records.jsonl", "gates.safetensors"}


def test_a_packed_experiment_says_the_same_in_a_handful_of_files(tmp_path):
    out = write_experiment(tmp_path)
    before = said(out)
    packed = pack(out)
    assert (packed.records, packed.unfinished) == (10, ())
    assert "10 runs in records.jsonl" in str(packed)
    assert said(out) == before
    assert set(files(out)) == HANDFUL


def test_a_second_time_changes_nothing(tmp_path):
    out = write_experiment(tmp_path)
    pack(out)
    before = files(out)
    changed = (out / "records.jsonl").stat().st_mtime_ns
    assert pack(out).removed == 0
    assert files(out) == before
    assert (out / "records.jsonl").stat().st_mtime_ns == changed


def test_the_same_records_give_the_same_bytes_in_whatever_order_they_came(tmp_path):
    first, second = (write_experiment(tmp_path / str(order), order) for order in (1, 2))
    pack(first)
    kept = {place: loose_path(second, place).read_text() for place in list(places())[::2]}
    for place in kept:
        loose_path(second, place).unlink()
    pack(second)
    for place, text in kept.items():  # recorded after the others were packed
        loose_path(second, place).parent.mkdir(parents=True, exist_ok=True)
        loose_path(second, place).write_text(text)
    assert said(second) == said(first)
    pack(second)
    assert files(first) == files(second)


def write_derived(out):
    """What commands make of the records: a report with one of two figures, and statistics."""
    (out / "figures").mkdir()
    for name in ("shown.png", "shown.pdf", "other.png"):
        (out / "figures" / name).write_text(name)
    (out / "report.md").write_text("# A report\n\n![A figure.](figures/shown.png)\n")
    for name in ("statistics_summary.json", "significance_tests.json", "seed_0.json", "seed_0.pkl"):
        (out / name).write_text("made of records")


class KilledError(Exception):
    """The process ended here."""


def test_a_kill_at_any_file_operation_loses_nothing(tmp_path, monkeypatch):
    whole = write_experiment(tmp_path / "whole")
    write_derived(whole)
    expected = said(whole)
    left = {"at": 10**6}
    replace, unlink = Path.replace, Path.unlink

    def killing(operation):
        def or_not(self, *arguments, **options):
            left["at"] -= 1
            if left["at"] == 0:
                raise KilledError
            return operation(self, *arguments, **options)

        return or_not

    monkeypatch.setattr(Path, "replace", killing(replace))
    monkeypatch.setattr(Path, "unlink", killing(unlink))
    shutil.copytree(whole, tmp_path / "counted")
    pack(tmp_path / "counted")
    operations = 10**6 - left["at"]
    assert operations > 20
    for at in range(1, operations + 1):
        out = tmp_path / f"killed-{at}"
        shutil.copytree(whole, out)
        left["at"] = at
        with pytest.raises(KilledError):
            pack(out)
        left["at"] = 10**6
        assert said(out) == expected, at
        pack(out)
        assert said(out) == expected, at
        assert files(out) == files(tmp_path / "counted"), at


def test_what_was_written_anew_meanwhile_is_not_removed(tmp_path, monkeypatch):
    out = write_experiment(tmp_path)
    failed = dataclasses.replace(made_up_failure("gated", 1), run=record("gated", 1, 2.0, 2e-3).run)
    write_record(out, "runs/gated/seed-1", failed)
    again = record("gated", 1, 1.5, 2e-3)
    lock, once = locked, []

    def finishing(claim):
        if claim.name == ".seed-1.claim" and claim.parent.name == "gated" and once:
            write_record(out, "runs/gated/seed-1", again)
        once.append(claim)
        return lock(claim)

    monkeypatch.setattr("qkvflow.experiments.pack.locked", finishing)
    packed = pack(out)
    assert read_json(out / "runs" / "gated" / "seed-1.json")["valid"]["loss"] == 1.5
    assert again in read_experiment(out).records
    assert packed.unfinished == ()


def test_an_experiment_with_a_run_under_way_is_not_packed(tmp_path):
    out = write_experiment(tmp_path)
    before = files(out)
    claim = out / "runs" / "gated" / ".seed-7.claim"
    with locked(claim), pytest.raises(FileError, match=r"runs/gated/seed-7 of .* is under way"):
        pack(out)
    shutil.rmtree(claim)
    assert files(out) == before


def test_what_is_unfinished_is_said(tmp_path):
    out = write_experiment(tmp_path)
    loose_path(out, "runs/standard/seed-1").unlink()
    write_record(out, "runs/gated/seed-0", made_up_failure("gated", 0))
    packed = pack(out)
    assert packed.unfinished == (
        "runs/standard/seed-1 (not run)",
        "runs/gated/seed-0 (no such thing)",
    )
    assert "Not finished: runs/standard/seed-1 (not run)" in str(packed)


@pytest.mark.parametrize("damage", ["{", '{"place": "runs/gated/seed-0"}', "[]"])
def test_a_damaged_line_is_named_by_its_number(tmp_path, damage):
    out = write_experiment(tmp_path)
    pack(out)
    lines = (out / "records.jsonl").read_text().splitlines()
    lines[3] = damage
    (out / "records.jsonl").write_text("\n".join(lines))
    with pytest.raises(FileError, match=r"records.jsonl, line 4, is damaged"):
        read_experiment(out)


def test_a_line_that_is_no_record_is_named_by_its_number(tmp_path):
    out = write_experiment(tmp_path)
    pack(out)
    lines = (out / "records.jsonl").read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if '"runs/gated/seed-0"' in line)
    lines[number - 1] = lines[number - 1].replace('"bits_per_byte"', '"bits"')
    (out / "records.jsonl").write_text("\n".join(lines))
    with pytest.raises(FileError, match=rf"line {number}, is not the record of a run: it has no 'bits"):
        read_experiment(out)


def test_figures_that_the_report_does_not_show_and_what_a_command_makes_again_go(tmp_path):
    out = write_experiment(tmp_path)
    write_derived(out)
    pack(out)
    assert set(files(out)) == HANDFUL | {"report.md", "figures/shown.png"}


def test_a_directory_without_an_experiment_is_not_packed(tmp_path):
    with pytest.raises(FileError, match="is no experiment"):
        pack(tmp_path)


def test_seeds_and_arms_are_added_to_a_packed_experiment(text, tmp_path):
    """Nothing is run again; what is new lies beside what is packed until it is packed, too."""
    sweep = {"learning_rates": [1e-3, 1e-2], "steps": 2}
    arms = {"shared": {"model": "shared"}}
    fields = tiny_fields(text, arms=arms, reference="shared", sweep=sweep, seeds=1)
    assert len(run_all(Plan.of(fields), tmp_path)) == 3
    pack(tmp_path)
    choices = read_choices(tmp_path)
    assert run_all(Plan.of(fields), tmp_path) == []
    assert run_all(Plan.of({**fields, "seeds": 2}), tmp_path) == [("shared", 1)]
    assert [r.seed for r in read_experiment(tmp_path).records] == [0, 1]
    more = {**fields, "seeds": 2, "arms": {**arms, "standard": {"model": "standard"}}}
    assert len(run_all(Plan.of(more), tmp_path)) == 4
    assert read_choices(tmp_path)["shared"] == choices["shared"]
    assert pack(tmp_path).records == 8
    assert not loose_path(tmp_path, "runs/standard/seed-1").exists()
    assert (tmp_path / "runs" / "standard" / "seed-1" / "final").is_dir(), "models stay"
    assert run_all(Plan.of(more), tmp_path) == []


EXPERIMENTS = sorted(path.parent for path in RESULTS.glob("*/plan.yaml"))


@pytest.mark.parametrize("out", EXPERIMENTS, ids=lambda out: out.name)
def test_results_are_packed(out):
    assert not [path for path in out.rglob("*.json") if path.name.startswith(("seed", "lr-"))]
    assert (out / "records.jsonl").is_file()


@pytest.mark.parametrize(
    "out", [out for out in EXPERIMENTS if (out / "report.md").is_file()], ids=lambda out: out.name
)
def test_a_report_made_anew_has_the_numbers_of_the_one_that_is_kept(out):
    page = experiment_page("", read_experiment(out), {})
    assert numbers_of(to_markdown(page, out)) == numbers_of((out / "report.md").read_text())


def test_so_has_the_page_of_several():
    outs = [RESULTS / name for name in ("laptop", "laptop-parameters", "laptop-flops")]
    page = page_of_several("", [read_experiment(out) for out in outs], [{}] * 3)
    kept = RESULTS / "three-tables" / "report.md"
    assert numbers_of(to_markdown(page, kept.parent)) == numbers_of(kept.read_text())


def test_numbers_that_differ_are_seen():
    table = "| model | loss |\n| --- | ---: |\n| shared | {} |\n"
    same = numbers_of(f"Some words.\n\n{table.format('1.39 +- 0.01')}")
    assert same == [[["1.39", "0.01"]]]
    assert same == numbers_of(f"Other words, 7.\n\n{table.format('1.39 ± 0.01')}")
    assert same != numbers_of(table.format("1.38 +- 0.01"))
    assert numbers_of("") == []
