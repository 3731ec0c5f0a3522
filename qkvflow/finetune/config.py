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
    """Directory of the base model: a run, a checkpoint, or an exported model."""
    depth: Depth | None = None
    """Number of layers at which the base model's weights are sampled. None: keep its depth and weight
    curves."""
    method: Method = "full"
    """What is trained. full: all arrays. lora: low-rank factors in every layer. depth_lora: one pair of
    factors for all layers, scaled by a function of depth. embeddings: embeddings and norms."""
    rank: int = 8
    """Rank of the factors, with --method lora or depth_lora."""
    alpha: float = 16.0
    """Scale of lora: the product of its factors is multiplied by alpha / rank."""
    maps: tuple[str, ...] = ("*.*",)
    """Linear maps to adapt, by pattern: attention.qkv, mlp.*, lm_head. *.*: all maps of every layer."""
    also: tuple[str, ...] = ()
    """Additional arrays to train, by path pattern: transformer.wte.*, lm_head.*."""

    _: KW_ONLY
    data: str | None = None
    """Text: a corpus (embedded, wikitext-2, ...) or a path; None: that of the base model's run."""
    documents: Count | Literal["run"] | None = "run"
    """Number of documents to stream from hf:OWNER/NAME; run: as many as the base used; None: all."""
    length: int | None = None
    """Tokens per window. None: the maximum sequence length of the base model."""
    steps: NotNegativeInt = 500
    """Number of training steps; 0: the base model stays unchanged."""
    eval_every: Count = 100
    """Training steps between evaluations on the valid split."""
    keep: Count = 1
    """Number of latest checkpoints to keep, besides the best one."""


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
