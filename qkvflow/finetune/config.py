"""What a fine-tuning is, and the run that it comes to."""

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from qkvflow.config import RunConfig, StartConfig, TrainingConfig, strict
from qkvflow.config.strict import Count, Depth, NotNegativeInt
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.models.named import FLOW
from qkvflow.models.paths import arrays_of
from qkvflow.models.storage import arrays_digest
from qkvflow.train import load_model, read_tokenizer
from qkvflow.train.start import starting_shapes, trained_paths

Method = Literal["full", "lora", "depth_lora", "embeddings"]
_TRAINED: dict[str, Literal["all", "adapter", "embeddings_and_norms"]] = {
    "full": "all",
    "lora": "adapter",
    "depth_lora": "adapter",
    "embeddings": "embeddings_and_norms",
}


@strict
@dataclass(frozen=True)
class FinetuneConfig(TrainingConfig):
    """A fine-tuning: which base, at which depth, what of it is trained, on which text."""

    refusal = "This fine-tuning cannot be made:"

    checkpoint: str
    """Directory of the base: a run, a checkpoint, or an exported model."""
    depth: Depth | None = None
    """Layers at which the weights of the base are sampled. None: its own depth, and its own curves."""
    method: Method = "full"
    """What is trained. full: all arrays. lora: a pair of factors for every layer. depth_lora: one pair,
    scaled by a function of depth. embeddings: embeddings and norms."""
    rank: int = 8
    """Rank of the adapters."""
    alpha: float = 16.0
    """Scale of lora: the product of the factors counts alpha / rank times."""
    maps: tuple[str, ...] = ("*.*",)
    """Linear maps with an adapter, by pattern: attention.qkv, mlp.*, lm_head. *.*: all of a layer."""
    also: tuple[str, ...] = ()
    """Further arrays to train, by patterns over their paths: transformer.wte.*, lm_head.*."""

    _: KW_ONLY
    length: int | None = None
    """Tokens in a window. None: the longest sequence of the base."""
    steps: NotNegativeInt = 500
    """Training steps; 0 gives back the base."""
    eval_every: Count = 100
    """Steps between evaluations on the valid split."""
    keep: Count = 1
    """Number of newest checkpoints to keep, beside the best one."""


def finetuning_run(config: FinetuneConfig) -> RunConfig:
    """The training run of a fine-tuning; all its mistakes show here.

    Raises:
        FileError: the base is missing or broken.
        ConfigError: it cannot be adapted like this.
    """
    base = load_model(config.checkpoint)
    model = starting_shapes(base, config.depth, _adapter(config), config.checkpoint)
    start = StartConfig(
        checkpoint=config.checkpoint,
        digest=arrays_digest(arrays_of(base)),
        depth=config.depth,
        train=_TRAINED[config.method],
        also=config.also,
    )
    trained_paths(model, start)
    longest = model.config.max_position_embeddings
    return RunConfig(
        model=FLOW if model.preset is None else model.preset.name,
        tokenizer=read_tokenizer(config.checkpoint).kind,
        length=longest if config.length is None else config.length,
        architecture=model.config,
        start=start,
        **{own.name: getattr(config, own.name) for own in dataclasses.fields(TrainingConfig)},
    )


def _adapter(config: FinetuneConfig) -> Adapter | None:
    """The adapter that is trained, where it is one."""
    if _TRAINED[config.method] != "adapter":
        return None
    settings = {"rank": config.rank, "alpha": float(config.alpha), "maps": config.maps}
    return ADAPTERS.read({"method": config.method, **settings})
