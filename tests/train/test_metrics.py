"""Records: lines that survive a kill, thresholds, TensorBoard."""

import json
import math

import pytest

from qkvflow.cli.main import main
from qkvflow.config import write_run
from qkvflow.train import train
from qkvflow.train.metrics import MetricsFile, read_metrics
from tests.train.support import records, tiny_run
from tests.train.test_loop import StopAt


def line(step, **values):
    return {"kind": "train", "step": step, "seconds": 0.5, "loss": 2.0, **values}


def test_lines_that_were_cut_short_and_later_steps_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(line(step)) for step in range(5)] + [json.dumps({"kind": "final", "step": 2})]
    lines[1:1] = ["garbage", "{}", "[1]", '{"kind": "{"kind": "train"']
    path.write_text("\n".join(lines) + '\n{"kind": "tr')
    sink = MetricsFile(path, 2)
    sink.write(line(3, loss=math.nan))
    sink.close()
    assert read_metrics(path) == [line(0), line(1), line(2), line(3, loss=None)]


FINAL = {
    **{"kind": "final", "step": 12, "seconds": 1.5, "loss": 2.0, "bits_per_byte": 2.9},
    **{"standard_error": None, "whole": True, "evaluated_tokens": 640},
}
ODD = ("x", [], {}, True, math.nan, math.inf, 10**400)
ODD_LINES = [
    *("", "null", "3", "[]", "{}", '"train"', "[" * 100_000, "9" * 5000, '{"kind": "train"}'),
    *(json.dumps({**line(1), name: odd}) for name in ("step", "seconds", "loss") for odd in ODD),
    *(json.dumps({**line(1), "kind": odd}) for odd in (None, [], {}, 3)),
    *(json.dumps({**line(1), "step": odd}) for odd in (-1, 1.0, None)),
    *(json.dumps({**FINAL, name: odd}) for name in list(FINAL)[1:] for odd in ("x", [], {})),
    *(json.dumps({k: v for k, v in FINAL.items() if k != name}) for name in FINAL),
    *(json.dumps({"kind": "note", "step": 0, "text": odd}) for odd in (None, 3, [])),
    '{"kind": "note", "step": 0}',
    '{"kind": "compiled", "step": 0, "memory_bytes": "much"}',
    '{"kind": "valid", "step": 4, "loss": "low", "seconds": 1}',
]


def test_an_odd_line_is_none(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = [line(1), {"kind": "valid", "step": 4, "seconds": 1, "loss": None}, FINAL]
    for odd in ODD_LINES:
        path.write_text(odd)
        assert read_metrics(path) == [], odd[:200]
    path.write_text("\n".join([*ODD_LINES, *map(json.dumps, good)]))
    assert read_metrics(path) == good


def test_a_run_with_odd_lines_goes_on_and_shows_its_end(text, tmp_path, capsys):
    out, run = tmp_path / "out", tiny_run(text)
    train(run, out, [StopAt(5)])
    with (out / "metrics.jsonl").open("a") as file:
        file.write("\n".join(ODD_LINES))
    assert train(run, out).finished
    assert [record["step"] for record in records(out, "train")] == list(range(1, 13))
    with (out / "metrics.jsonl").open("a") as file:
        file.write("\n".join(ODD_LINES))
    write_run(run, tmp_path / "run.yaml")
    assert main(["train", "--config", str(tmp_path / "run.yaml"), "--out", str(out)]) == 0
    assert "step     12  valid " in capsys.readouterr().out


def test_tensorboard_gets_the_curve(text, tmp_path):
    event_file_loader = pytest.importorskip("tensorboardX.proto.event_pb2")
    from tensorboardX.record_writer import masked_crc32c

    train(tiny_run(text, trackers=("tensorboard",)), tmp_path / "out")
    (path,) = (tmp_path / "out" / "tensorboard").iterdir()
    data, found = path.read_bytes(), {}
    while data:
        size = int.from_bytes(data[:8], "little")
        assert masked_crc32c(data[:8]) == int.from_bytes(data[8:12], "little")
        event = event_file_loader.Event.FromString(data[12 : 12 + size])
        found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
        data = data[16 + size :]
    for record in records(tmp_path / "out", "train"):
        assert found["train/loss", record["step"]] == pytest.approx(record["loss"], rel=1e-6)
    assert ("valid/bits_per_byte", 12) in found


def test_wandb_gets_the_curve(text, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(tiny_run(text, trackers=("wandb",)), tmp_path / "out")
    assert list((tmp_path / "out" / "wandb").glob("offline-run-*"))
