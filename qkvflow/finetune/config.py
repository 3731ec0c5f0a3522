"""What a fine-tuning is, and the run that it comes to."""

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from qkvflow.config import RunConfig, TrainingConfig, strict
from qkvflow.config.strict import Count, Depth, NotNegativeInt
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.train.resume import own_text
from qkvflow.train.start import settings_of_start

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
    """Number of layers at which the base's weights are sampled. None: its own depth, and its own
    curves."""
    method: Method = "full"
    """What is trained. full: all arrays. lora: low-rank factors for every layer. depth_lora: one pair
    of factors, scaled by a function of depth. embeddings: embeddings and norms."""
    rank: int = 8
    """Rank of the low-rank adapters."""
    alpha: float = 16.0
    """Scale of lora: the product of the factors is multiplied by alpha / rank."""
    maps: tuple[str, ...] = ("*.*",)
    """Linear maps with an adapter, by pattern: attention.qkv, mlp.*, lm_head. *.*: all of a layer."""
    also: tuple[str, ...] = ()
    """Further arrays to train, by patterns over their paths: transformer.wte.*, lm_head.*."""

    _: KW_ONLY
    data: str | None = None
    """A corpus (embedded, wikitext-2, ...) or a path to text; None: the text of the base's own run."""
    documents: Count | Literal["run"] | None = "run"
    """Documents to stream from hf:OWNER/NAME; run: as many as in the base's training run; None: all."""
    length: int | None = None
    """Tokens per window. None: the longest sequence of the base."""
    steps: NotNegativeInt = 500
    """Number of training steps; 0: the base stays as it is."""
    eval_every: Count = 100
    """Steps between evaluations on the valid split."""
    keep: Count = 1
    """Number of newest checkpoints to keep, besides the best one."""


def finetuning_run(config: FinetuneConfig) -> RunConfig:
    """The training run of a fine-tuning; all its mistakes show here.

    Raises:
        FileError: the base is missing or broken.
        ConfigError: it cannot be adapted like this, or no text is named and it has none of its own.
    """
    train = _TRAINED[config.method]
    found = settings_of_start(config.checkpoint, config.depth, _adapter(config), train, config.also)
    data, documents = own_text(config.checkpoint, config.data, config.documents)
    longest = found["architecture"].max_position_embeddings
    common = {own.name: getattr(config, own.name) for own in dataclasses.fields(TrainingConfig)}
    length = longest if config.length is None else config.length
    return RunConfig(data=data, documents=documents, length=length, **found, **common)


def _adapter(config: FinetuneConfig) -> Adapter | None:
    """The adapter that is trained, where it is one."""
    if _TRAINED[config.method] != "adapter":
        return None
    settings = {"rank": config.rank, "alpha": float(config.alpha), "maps": config.maps}
    return ADAPTERS.read({"method": config.method, **settings})
