"""Records: lines that survive a kill, thresholds, TensorBoard."""

import json
import math

import pytest

from qkvflow.train import train
from qkvflow.train.metrics import MetricsFile, Thresholds, read_metrics
from tests.train.support import records, tiny_run


def line(step, **values):
    return {"kind": "train", "step": step, **values}


def test_lines_that_were_cut_short_and_later_steps_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(line(step)) for step in range(5)] + [json.dumps({"kind": "final", "step": 2})]
    lines[1:1] = ["garbage", "{}", "[1]", '{"kind": "{"kind": "train"']
    path.write_text("\n".join(lines) + '\n{"kind": "tr')
    sink = MetricsFile(path, 2)
    sink.write(line(3, loss=math.nan))
    sink.close()
    assert read_metrics(path) == [line(0), line(1), line(2), line(3, loss=None)]


def test_every_tenth_is_reached_once_and_each_seed_has_its_own():
    thresholds = Thresholds([{"kind": "valid", "loss": 3.04, "seed": 1}])
    assert thresholds.newly_reached(2.75, 1) == [3.0, 2.9, 2.8]
    assert thresholds.newly_reached(2.9, 1) == []
    assert thresholds.newly_reached(2.7, 1) == [2.7]
    assert thresholds.newly_reached(2.0, 2) == []
    assert thresholds.newly_reached(math.nan, 2) == []
    assert thresholds.newly_reached(1.95, 2) == []
    assert thresholds.newly_reached(1.9, 2) == [1.9]


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
