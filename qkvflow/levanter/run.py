"""A run of Levanter's own trainer on a model of qkvflow, from Levanter's own config.

All of Levanter's fields and options work as Levanter documents them. What is added where the config is
silent: the axes that tensor parallelism cuts, and an optimizer that goes by our table of parameters.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import levanter.config
import numpy as np
from draccus.utils import DraccusException
from levanter.eval import DomainTaggedDataset
from levanter.main import train_lm
from levanter.main.train_lm import TrainLmConfig
from levanter.utils.mesh import MeshConfig

from qkvflow.config import ConfigError
from qkvflow.levanter.model import QkvflowConfig
from qkvflow.levanter.optimizers import ByTable
from qkvflow.levanter.source import CorpusSource as CorpusSource
from qkvflow.models import LanguageModel

MODEL = "model"
"""The axis of Levanter's mesh over which tensor parallelism cuts."""
CUT = ("kv_heads", "mlp", "ssm_inner", "ssm_channels", "ssm_heads")
"""Axes that it cuts: heads with their queries, the MLP's hidden layer, state-space channels and heads.
Gates over one of them are cut with it."""


def read_config(arguments: Sequence[str]) -> TrainLmConfig:
    """The config that `--config FILE` and options after it stand for, as Levanter reads them.

    Raises:
        ConfigError: it cannot be read, or has fields that there are not, or is of another model.
    """
    try:
        config = levanter.config.main(_itself, args=list(arguments))()
    except (DraccusException, OSError, TypeError, ValueError) as error:
        raise ConfigError("Levanter's config cannot be used:", _problems(error)) from error
    if not isinstance(config.model, QkvflowConfig):
        raise ConfigError(
            "Levanter's config cannot be used:",
            [f"model is a {type(config.model).__name__}; expected model.type: qkvflow."],
        )
    return config


def _itself(config: TrainLmConfig) -> TrainLmConfig:
    return config


def _problems(error: BaseException) -> list[str]:
    """What was wrong, from the first error that says it in sentences, or else in Levanter's words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return cause.problems
        cause = cause.__cause__
    hint = "A config of `qkvflow train` has other fields; configs/levanter_small.yaml shows these."
    return [" ".join(str(error).split()), hint]


def train(config: TrainLmConfig) -> None:
    """Train with Levanter's trainer, or go on from its newest checkpoint."""
    DomainTaggedDataset._compute_tag_arrays = _tag_arrays
    train_lm.main(prepared(config))


def prepared(config: TrainLmConfig) -> TrainLmConfig:
    """The config with what it leaves open: the optimizer on our table, the axes that are cut."""
    check_precision(config)
    trainer = dataclasses.replace(config.trainer, mesh=cut_mesh(config.trainer.mesh))
    check_cuts(config.model.shapes(1), config.trainer.mesh)
    return dataclasses.replace(config, trainer=trainer, optimizer=ByTable(inner=config.optimizer))


def cut_mesh(mesh: MeshConfig) -> MeshConfig:
    """A mesh whose axis "model" cuts our axes, too, where it does not say otherwise.

    The vocabulary is cut where parameters are kept, and whole where logits are made.
    """
    shared = {**dict.fromkeys(CUT, MODEL), **mesh.shared_mapping}
    vocab = {} if "vocab" in {**mesh.shared_mapping, **mesh.param_mapping} else {"vocab": MODEL}
    param = {**mesh.param_mapping, **vocab}
    return dataclasses.replace(mesh, shared_mapping=shared, param_mapping=param)


def check_cuts(model: LanguageModel, mesh: MeshConfig) -> None:
    """Refuse axes that cannot be cut into equal parts over the axis "model"."""
    pieces = mesh.axes.get(MODEL, 1)
    sizes = {axis.name: axis.size for found in model.parameters().values() for axis in found.axes}
    mapping = cut_mesh(mesh).resolved_param_mapping
    cut = [name for name in sizes if name != "vocab" and mapping.get(name) == MODEL]
    problems = [
        f"{name} is {sizes[name]}, not divisible by trainer.mesh.axes.model, {pieces}; choose another "
        f"size, or map it to nothing: trainer.mesh.shared_mapping: {{{name}: null}}."
        for name in cut
        if pieces > 1 and sizes[name] % pieces
    ]
    if problems:
        raise ConfigError("This model cannot be cut over the devices:", problems)


def check_precision(config: TrainLmConfig) -> None:
    """Refuse a precision that would round time, too."""
    policy = config.trainer.mp
    if jnp.dtype(policy.compute_dtype) != jnp.float32 or jnp.dtype(policy.param_dtype) != jnp.float32:
        raise ConfigError(
            "This precision cannot be used:",
            [
                f"trainer.mp is {policy}; time networks need float32. Write mp: f32, and for bfloat16 "
                "model.architecture.compute_dtype: bfloat16."
            ],
        )


def _tag_arrays(self: Any) -> list[np.ndarray]:
    """Which tags the data sets have: arrays of no device, which can be stacked with those of any.

    Levanter puts them on the first device, and evaluation fails where there are several.
    """
    tags = [[self.tag_to_index[tag] for tag in tags] for _, tags in self.datasets]
    return [np.isin(np.arange(self.num_tags), indexed).astype(np.int32) for indexed in tags]
