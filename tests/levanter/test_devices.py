"""What takes long: several devices and processes, a realistic width, commands of docs/scaling.md."""

import json
import shlex
import socket
import subprocess
import sys

import pytest

from tests.levanter.support import (
    ROOT,
    command,
    difference,
    environment,
    losses_in,
    train,
    write_files,
)

DATA = ("--trainer.mesh.param_mapping", "{embed: null}")
TENSOR = ("--trainer.mesh.axes", "{data: 1, model: 4}")
BOTH = ("--trainer.mesh.axes", "{data: 2, model: 2}")
MUON = ("--optimizer", "{type: muon, learning_rate: 0.01, weight_decay: 0.1}")
HELD = """
import json, sys
import jax
import levanter.optim
from haliax.partitioning import named_jit, set_mesh
from levanter.trainer import TrainerConfig
from levanter.trainer_state import TrainerState
from levanter.utils.mesh import MeshConfig
from haliax import Axis
from qkvflow.config import Gpt2Config
from qkvflow.levanter import QkvflowConfig
from qkvflow.levanter.optimizers import ByTable
from qkvflow.levanter.run import cut_mesh
name, optimizer = sys.argv[1:]
shape = {"hidden_dim": 768, "num_heads": 12, "num_layers": 4, "time_embed_dim": 20}
config = QkvflowConfig(name=name, max_seq_len=256, architecture=Gpt2Config(flavour="llama", **shape))
optimizer = ByTable(inner=levanter.optim.OptimizerConfig.get_choice_class(optimizer)()).build(10)
def begun(key):
    return TrainerState.init(optimizer, config.build(Axis("vocab", 4096), key=key), key=key)
shares = {}
for data, model in ((4, 1), (1, 4), (2, 2)):
    trainer = TrainerConfig(mesh=cut_mesh(MeshConfig(axes={"data": data, "model": model})))
    with set_mesh(trainer.device_mesh):
        mapping = trainer.parameter_axis_mapping
        state = named_jit(begun, axis_resources=mapping)(jax.random.PRNGKey(0))
    arrays = [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]
    held = sum(s.data.nbytes for x in arrays for s in x.addressable_shards if s.device.id == 0)
    shares[f"{data} x {model}"] = held / sum(x.nbytes for x in arrays)
print(json.dumps(shares))
"""


@pytest.fixture(scope="module", params=["time_indexed_ssm", "tong_neuralode"])
def alone(request, tmp_path_factory):
    """A folder, and the losses of one device there."""
    folder = tmp_path_factory.mktemp(request.param)
    write_files(folder, name=request.param)
    return folder, train(folder, "alone")


@pytest.mark.parametrize("cut", [(), DATA, TENSOR, BOTH], ids=["fsdp", "data", "tensor", "both"])
def test_four_devices_have_the_losses_of_one(alone, cut, request):
    folder, losses = alone
    found = train(folder, request.node.callspec.id, *cut, devices=4)
    error = difference(found, losses)
    assert error < 1e-5, error


def test_muon_on_four_devices_has_the_losses_of_one(alone):
    folder, losses = alone
    one, four = (train(folder, f"muon{n}", *MUON, *BOTH[: 2 * (n > 1)], devices=n) for n in (1, 4))
    assert difference(one, four) < 1e-5, difference(one, four)
    assert difference(one, losses) > 1e-3


def test_two_processes_have_the_losses_of_one(alone):
    folder, losses = alone
    logs = train_in_two(folder, "two")
    for log in logs:
        error = difference(losses_in(log), losses)
        assert error < 1e-5, error


def train_in_two(folder, run):
    """The logs of two processes that train together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    several = ("--trainer.distributed.coordinator_address", address)
    several += ("--trainer.distributed.num_processes", "2", "--trainer.distributed.process_id")
    both = [
        subprocess.Popen(
            command("train", "--config", "run.yaml", "--trainer.id", run, *several, i),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in (0, 1)
    ]
    logs = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], logs[0][-2000:] + logs[1][-2000:]
    return logs


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("standard", "muon"), ("tong_neuralode", "adam"), ("time_indexed_ssm", "muon")],
)
def test_a_device_of_four_holds_a_quarter(name, optimizer):
    """Parameters and the optimizer's state, cut over the batch's devices, the model's, or both."""
    words = [sys.executable, "-W", "ignore", "-c", HELD, name, optimizer]
    done = subprocess.run(words, env=environment(4), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    shares = json.loads(done.stdout)
    assert max(shares.values()) < 1.1 / 4, shares


def test_the_commands_of_the_document_run(tmp_path):
    """All those before its first heading, as they stand; training is cut short."""
    text = (ROOT / "docs" / "scaling.md").read_text().split("\n## ")[0]
    lines = [line.strip() for line in text.splitlines() if line.startswith("    qkvflow ")]
    assert [line.split()[1] for line in lines] == ["levanter", "levanter", "evaluate", "levanter"]
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    cut_short = ["--trainer.num_train_steps", "3", "--trainer.max_eval_batches", "1"]
    for line in lines:
        words = [sys.executable, "-W", "ignore", "-m", *shlex.split(line)]
        words += cut_short if " train " in line else []
        here = {**environment(), "QKVFLOW_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            words, cwd=tmp_path, env=here, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "starts" / "small" / "metadata.json").is_file()
