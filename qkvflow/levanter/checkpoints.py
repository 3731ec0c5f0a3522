"""Models that come from checkpoints of Levanter, and checkpoints that its runs start from.

A checkpoint holds arrays and no config: the run's YAML says what they are of.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import tensorstore
from levanter.checkpoint import latest_checkpoint_path, save_checkpoint
from levanter.main.train_lm import TrainLmConfig

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.data import Tokenizer
from qkvflow.data.bpe import BPETokenizer
from qkvflow.files import FileError
from qkvflow.levanter.model import QkvflowLM
from qkvflow.levanter.run import MODEL, cut_mesh
from qkvflow.models import LanguageModel
from qkvflow.models.paths import Arrays, arrays_of, with_arrays
from qkvflow.models.storage import check_finite, check_shapes

IN_STATE = "model/model/"
"""Where the arrays of a qkvflow model are in the state of Levanter's trainer."""
END = "/zarr.json"
TABLE = "transformer.wte.weight"
FREE = {"max_position_embeddings", "remat", "compute_dtype", "attn_pdrop", "resid_pdrop", "embd_pdrop"}
"""Fields of an architecture in which a run may differ from the model that it starts from; a table of
positions that does not fit is found by its shape."""


def read_run(run: Path, config: TrainLmConfig) -> LanguageModel:
    """The model of the newest whole checkpoint of a run, by the run's config.

    Raises:
        FileError: there is none, or it holds another model.
        ConfigError: it has another vocabulary than the config's tokenizer.
    """
    arrays = stored_arrays(newest(run))
    if TABLE not in arrays:
        raise FileError(f"{run} holds no model of qkvflow: there is no array {IN_STATE}{TABLE}.")
    rows = len(arrays[TABLE])
    check_vocabulary(rows, config, f"The checkpoint in {run}")
    shapes = config.model.shapes(rows)
    check_shapes(arrays, arrays_of(shapes), str(run))
    check_finite(arrays, str(run))
    return with_arrays(shapes, {path: jnp.asarray(array) for path, array in arrays.items()})


def newest(run: Path) -> Path:
    """The newest whole checkpoint of a run's directory, or the directory itself where it is one."""
    try:
        return Path(latest_checkpoint_path(str(run)))
    except FileNotFoundError as error:
        below = sorted(str(path.parent.parent) for path in run.glob("*/*/metadata.json"))
        hint = (
            f"Did you mean {below[0]}?" if below else "Name one that holds step-..., as Levanter does."
        )
        raise FileError(f"There is no checkpoint of Levanter in {run}. {hint}") from error


def stored_arrays(checkpoint: Path) -> Arrays:
    """The arrays of the model in a checkpoint of Levanter, by their paths in the model."""
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{checkpoint.resolve()}/"}}
    keys = tensorstore.KvStore.open(store).result().list().result()
    names = [key.decode().removesuffix(END) for key in keys if key.decode().endswith(END)]
    found = {}
    for name in names:
        if name.startswith(IN_STATE):
            spec = {"driver": "zarr3", "kvstore": {**store, "path": name}}
            array: Any = tensorstore.open(spec, read=True, open=True).result().read().result()
            found[name.removeprefix(IN_STATE).replace("/", ".")] = array
    return found


def check_vocabulary(rows: int, config: TrainLmConfig, what: str) -> None:
    """Refuse a model whose token ids are not those of the config's tokenizer.

    There may be more rows than ids, where Levanter has rounded them up to cut them over devices.
    """
    ids, mesh = len(config.data.the_tokenizer), config.trainer.mesh
    pieces = mesh.axes.get(MODEL, 1)
    cut_otherwise = cut_mesh(mesh).resolved_param_mapping.get("vocab") != MODEL
    if rows in (ids, -(-ids // pieces) * pieces) or (cut_otherwise and rows > ids):
        return
    raise ConfigError(
        "The vocabularies differ:",
        [f"{what} has {rows} token ids, the tokenizer {config.data.tokenizer} {ids}. Name its own."],
    )


def tokenizer_of(config: TrainLmConfig) -> Tokenizer:
    """The tokenizer of a config, as qkvflow keeps tokenizers."""
    backend = config.data.the_tokenizer.as_hf_tokenizer().backend_tokenizer
    return BPETokenizer.parse(backend.to_str(), config.data.tokenizer)


def write_start(model: LanguageModel, config: TrainLmConfig, out: Path) -> None:
    """Write a model as a checkpoint that a run with this config can be started from.

    Raises:
        ConfigError: the config is of another model.
        FileError: something is there already.
    """
    if out.exists():
        raise FileError(f"{out} already exists; choose another directory, or remove it.")
    check_vocabulary(model.config.vocab_size, config, "The model")
    shapes = config.model.shapes(model.config.vocab_size)
    check_same(model.config, shapes.config)
    check_shapes(arrays_of(shapes), arrays_of(model), "The config")
    save_checkpoint({"model": QkvflowLM(model, config.model)}, 0, str(out), is_temporary=False)


def check_same(of_model: Gpt2Config, of_config: Gpt2Config) -> None:
    """Refuse a config that computes something else with the same arrays."""
    own, other = of_model.to_dict(), of_config.to_dict()
    problems = [
        f"model.architecture.{name} is {other[name]!r}, that of the model {own[name]!r}."
        for name in own
        if name not in FREE and own[name] != other[name]
    ]
    if problems:
        raise ConfigError("The config is of another model:", problems)
