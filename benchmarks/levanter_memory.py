"""What a device holds of a training step, fully sharded: by counts, and as XLA plans it.

    python -m benchmarks.levanter_memory            # the table, and the cells that XLA is asked for
    python -m benchmarks.levanter_memory --table    # the table alone, which needs no Levanter

Of every named model there is one of 125M, 350M and 1B parameters: as wide, in steps of 256, as that
takes. A parameter is a float32 with two moments of Adam, which stay, and a gradient, which comes and
goes. Arrays with an axis "embed" are cut over all devices, as Levanter does; every device has the rest.

For some cells the step (Levanter's loss, gradient, Adam) is compiled for that many simulated devices,
and XLA says what a device holds before it, and what it needs beside that for a row of 1024 tokens.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax

from qkvflow.config import Gpt2Config
from qkvflow.files import write_text
from qkvflow.models import MODELS, build_model
from qkvflow.nn.linear import size_of

OUT = Path(__file__).parent.parent / "results" / "levanter_memory.json"
LAYERS = {"125M": 12, "350M": 24, "1B": 24}
TARGETS = {"125M": 125e6, "350M": 350e6, "1B": 1e9}
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
VOCABULARY, LENGTH = 50304, 1024
CELLS = (
    ("standard", "125M", 4),
    ("tong_neuralode", "125M", 4),
    ("time_indexed_mlp", "350M", 8),
    ("standard", "1B", 16),
)
"""Which are compiled."""
STAYS, COMES = 3 * 4, 4
"""Bytes of a parameter with two moments; of its gradient."""


def config_of(width: int, layers: int) -> Gpt2Config:
    """A shape with heads of 64 channels."""
    return Gpt2Config(
        flavour="llama",
        hidden_dim=width,
        num_heads=width // 64,
        num_layers=layers,
        time_embed_dim=20,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
    )


def cut_and_whole(name: str, config: Gpt2Config) -> tuple[int, int]:
    """Numbers in arrays that are cut, and in those that every device has."""
    shapes = eqx.filter_eval_shape(build_model, name, config, key=jax.random.key(0))
    sizes = [0, 0]
    for found in shapes.parameters().values():
        is_whole = "embed" not in [axis.name for axis in found.axes]
        sizes[is_whole] += size_of(found.axes)
    return sizes[0], sizes[1]


def width_for(name: str, size: str) -> int:
    """The width, a multiple of 256, at which a model is nearest to so many parameters."""

    def error(width: int) -> float:
        return abs(sum(cut_and_whole(name, config_of(width, LAYERS[size]))) - TARGETS[size])

    width = 256
    while error(width + 256) < error(width):
        width += 256
    return width


def row(name: str, size: str) -> dict:
    """A model of a size: its width, its parameters, and the bytes of a device by their number."""
    width = width_for(name, size)
    cut, whole = cut_and_whole(name, config_of(width, LAYERS[size]))
    stays = {n: STAYS * (cut // n + whole) for n in DEVICES}
    total = {n: (STAYS + COMES) * (cut // n + whole) for n in DEVICES}
    shape = {"width": width, "layers": LAYERS[size], "parameters": cut + whole, "whole": whole}
    return {"model": name, "size": size, **shape, "stays": stays, "with_gradient": total}


def planned(name: str, size: str, devices: int) -> dict:
    """What XLA plans for a cell, in a process with so many simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.levanter_memory", "--plan", name, size, str(devices)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def plan(name: str, size: str, devices: int) -> dict:
    """Compile a step of one row for each device, and ask XLA what a device holds."""
    import haliax as hax
    import jax.numpy as jnp
    from haliax import Axis
    from haliax.partitioning import set_mesh, sharding_for_axis
    from levanter.models.lm_model import LmExample
    from levanter.optim import AdamConfig
    from levanter.trainer import TrainerConfig
    from levanter.utils.mesh import MeshConfig

    from qkvflow.levanter import QkvflowConfig
    from qkvflow.levanter.optimizers import ByTable
    from qkvflow.levanter.run import cut_mesh

    found = row(name, size)
    wide = config_of(found["width"], found["layers"])
    fields = ("flavour", "hidden_dim", "num_heads", "num_layers", "time_embed_dim")
    architecture = Gpt2Config(**{field: getattr(wide, field) for field in fields})
    config = QkvflowConfig(name=name, max_seq_len=LENGTH, architecture=architecture)
    trainer = TrainerConfig(mesh=cut_mesh(MeshConfig(axes={"data": devices})))
    optimizer = ByTable(inner=AdamConfig()).build(10)
    params, compute = trainer.parameter_axis_mapping, trainer.compute_axis_mapping
    Batch, Position = Axis("batch", devices), Axis("position", LENGTH)

    def loss(model, tokens):
        example = LmExample(tokens, hax.ones((Batch, Position)))
        return model.compute_next_token_loss(example).scalar()

    def step(model, state, tokens):
        with hax.axis_mapping(compute):
            tokens = hax.shard(hax.named(tokens, (Batch, Position)), compute)
            value, gradients = eqx.filter_value_and_grad(loss)(model, tokens)
        updates, state = optimizer.update(gradients, state, model)
        changed = hax.shard((eqx.apply_updates(model, updates), state), params)
        return jax.tree.leaves(eqx.filter(changed, eqx.is_array)), value

    def begun(key):
        model = config.build(Axis("vocab", VOCABULARY), key=key)
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def placed(leaf):
        if not isinstance(leaf, hax.NamedArray):
            return leaf
        sharding = sharding_for_axis(leaf.axes, params, trainer.device_mesh)
        shape = jax.ShapeDtypeStruct(leaf.array.shape, leaf.dtype, sharding=sharding)
        return dataclasses.replace(leaf, array=shape)

    with set_mesh(trainer.device_mesh):
        shapes = eqx.filter_eval_shape(begun, jax.random.PRNGKey(0))
        shapes = jax.tree.map(placed, shapes, is_leaf=lambda leaf: isinstance(leaf, hax.NamedArray))
        arrays, rest = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
        ids = jax.ShapeDtypeStruct((devices, LENGTH), jnp.int32)
        jitted = jax.jit(lambda arrays, ids: step(*eqx.combine(arrays, rest), ids), donate_argnums=0)
        analysis = jitted.lower(arrays, ids).compile().memory_analysis()
    counted = found["stays"][devices]
    own = {"model": name, "size": size, "devices": devices, "counted": counted}
    return own | {"held": analysis.argument_size_in_bytes, "beside": analysis.temp_size_in_bytes}


def main() -> None:
    """Write the table and what XLA says of some of its cells."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plan", nargs=3)
    options = parser.parse_args()
    if options.plan:
        name, size, devices = options.plan
        print(json.dumps(plan(name, size, int(devices))))
        return
    rows = [row(name, size) for size in LAYERS for name in MODELS]
    cells = [] if options.table else [planned(*cell) for cell in CELLS]
    if options.table and OUT.exists():
        cells = json.loads(OUT.read_text())["cells"]
    write_text(OUT, json.dumps({"rows": rows, "cells": cells}, indent=1) + "\n")
    for cell in cells:
        print(cell)


if __name__ == "__main__":
    main()
