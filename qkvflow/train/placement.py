"""Where arrays live: on the one device, or spread over all local devices by haliax axis mappings.

`data` keeps whole parameters on every device and cuts the batch; `fsdp` cuts parameters and the
optimizer's state along "embed", too, which every matrix has. XLA adds the communication.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from haliax.partitioning import pspec_for_axis
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qkvflow.config import ConfigError, Gpt2Config, RunConfig
from qkvflow.nn.parameters import Table

DEVICES = "devices"
MAPPINGS = {"data": {"batch": DEVICES}, "fsdp": {"batch": DEVICES, "embed": DEVICES}}


@dataclass(frozen=True)
class Placement:
    """A mesh of devices and the axes that are cut over it; no mesh is one device."""

    mesh: Mesh | None
    parallel: Literal["data", "fsdp"]
    parameters: Table
    """What the arrays are that are cut, by path."""
    seeds: int

    @staticmethod
    def of(run: RunConfig, config: Gpt2Config, parameters: Table) -> "Placement":
        """Over all local devices."""
        devices = jax.local_devices()
        check_divisible(run, config, len(devices))
        mesh = Mesh(np.array(devices), (DEVICES,)) if len(devices) > 1 else None
        return Placement(mesh, run.parallel, parameters, run.seeds)

    def batch(self, ids: np.ndarray) -> Any:
        """Ids [batch, position], or [seeds, batch, position], cut along the batch."""
        if self.mesh is None:
            return jax.device_put(ids)
        free = [None] * (ids.ndim - 2)
        return jax.device_put(ids, NamedSharding(self.mesh, PartitionSpec(*free, DEVICES)))

    def of_state(self, shapes: Any) -> Any:
        """Where every array of a tree of parameters and what mirrors them lives; None: anywhere.

        An array of the optimizer lies as the parameter does that its path names.
        """
        if self.mesh is None:
            return None
        return jax.tree_util.tree_map_with_path(self._sharding, shapes)

    def _sharding(self, path: Any, leaf: Any) -> NamedSharding:
        assert self.mesh is not None
        parameter = self.parameters.get(getattr(path[-1], "key", ""))
        axes = () if parameter is None else parameter.axes
        several = 1 if self.seeds > 1 else 0
        if leaf.shape[several:] != tuple(axis.size for axis in axes):
            return NamedSharding(self.mesh, PartitionSpec())
        spec = pspec_for_axis(axes, MAPPINGS[self.parallel])
        return NamedSharding(self.mesh, PartitionSpec(*[None] * several, *spec))


def check_divisible(run: RunConfig, config: Gpt2Config, devices: int) -> None:
    """Refuse what cannot be cut into equal parts."""
    problems = []
    rows = run.batch_size // run.accumulate
    if rows % devices:
        problems.append(
            f"batch_size / accumulate is {rows}, not divisible by the {devices} devices; "
            "choose a multiple, or hide devices from JAX."
        )
    if run.parallel == "fsdp" and config.hidden_dim % devices:
        problems.append(f"hidden_dim {config.hidden_dim} is not divisible by the {devices} devices.")
    if problems:
        raise ConfigError(f"This run does not fit on {devices} devices:", problems)
