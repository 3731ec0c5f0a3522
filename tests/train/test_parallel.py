"""On four devices, data-parallel and fully sharded: the losses of one device."""

import json
from pathlib import Path

import pytest

from qkvflow.config import ConfigError
from qkvflow.train.placement import check_divisible
from tests.train.support import in_new_process, tiny_run, with_architecture

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import dataclasses, json, sys
from pathlib import Path
import jax
from qkvflow.train import train
from tests.train.support import records, tiny_run, with_architecture, with_optimizer
from tests.train.test_loop import StopAt
text, out, model, flavour, optimizer = sys.argv[1:]
run = tiny_run(text, model=model, steps=8, save_every=4, log_every=1)
run = with_architecture(run, resid_pdrop=0.1, flavour=flavour)
run = with_optimizer(run, name=optimizer, ema=0.9)
losses = {}
for parallel in ("data", "fsdp"):
    cut = dataclasses.replace(run, parallel=parallel)
    assert not train(cut, Path(out) / parallel, [StopAt(5)]).finished
    assert train(cut, Path(out) / parallel).finished
    shown = [r for kind in ("train", "valid") for r in records(Path(out) / parallel, kind)]
    losses[parallel] = [r["loss"] for r in shown]
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
run = dataclasses.replace(run, parallel="fsdp")
program = Program(run, open_data(run))
weight = program.state.parameters["transformer.wte.weight"]
moment = next(x for x in jax.tree.leaves(program.state.optimizer) if x.shape == weight.shape)
print(json.dumps({"losses": losses, "devices": jax.device_count(),
    "pieces": [x.sharding.shard_shape(x.shape) for x in (weight, moment)]}))
"""


def on_devices(count, *arguments):
    import os

    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    result = in_new_process(PROGRAM, *arguments, XLA_FLAGS=flags, PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


SLOW = pytest.param("standard", "gpt2", "adamw", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("model", "flavour", "optimizer"), [("time_indexed_mlp", "modern", "muon"), SLOW]
)
def test_four_devices_have_the_losses_of_one(text, tmp_path, model, flavour, optimizer):
    four = on_devices(4, text, tmp_path / "four", model, flavour, optimizer)
    one = on_devices(1, text, tmp_path / "one", model, flavour, optimizer)
    assert (four["devices"], one["devices"]) == (4, 1)
    assert one["losses"]["data"] == one["losses"]["fsdp"]
    for parallel, losses in four["losses"].items():
        error = max(abs(a - b) for a, b in zip(losses, one["losses"]["data"], strict=True))
        assert error < 1e-5, f"{parallel}: {error}"
    assert [width for _, width in four["pieces"]] == [2, 2]
    assert [width for _, width in one["pieces"]] == [8, 8]


def test_a_batch_that_cannot_be_cut_is_refused():
    run = tiny_run("text.txt", batch_size=6, parallel="fsdp")
    run = with_architecture(run, hidden_dim=10)
    with pytest.raises(ConfigError) as error:
        check_divisible(run, run.model_config(11), 4)
    assert "batch_size / accumulate is 6, not divisible by the 4 devices" in str(error.value)
    assert "hidden_dim 10 is not divisible by the 4 devices" in str(error.value)
