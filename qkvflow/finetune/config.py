"""What a fine-tuning is, and the run that it comes to."""

from dataclasses import dataclass, field
from typing import Literal

from qkvflow.config import ConfigError, OptimizerConfig, RunConfig, StartConfig, strict
from qkvflow.config.strict import type_problems
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.models.paths import arrays_of
from qkvflow.models.registry import FLOW
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

_OF_THE_RUN = (
    "data",
    "documents",
    "steps",
    "batch_size",
    "accumulate",
    "seed",
    "eval_every",
    "eval_tokens",
    "save_every",
    "keep",
    "log_every",
    "trackers",
    "optimizer",
)
"""Fields that a fine-tuning has in common with its run."""


@strict
@dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning: which base, at which depth, what of it is trained, on which text."""

    checkpoint: str
    """Directory of the base: a run, a checkpoint, or an exported model."""
    depth: int | None = None
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

    data: str = "embedded"
    """A corpus (embedded, wikitext-2, ...) or a path to text; the tokenizer is the base's."""
    documents: int | None = 10_000
    """Documents that are streamed of hf:OWNER/NAME; None takes all."""
    steps: int = 500
    """Training steps; 0 gives back the base."""
    batch_size: int = 8
    """Windows of text in a step."""
    length: int | None = None
    """Tokens in a window. None: the longest sequence of the base."""
    accumulate: int = 1
    """Microbatches that a batch is computed in, one after the other, to save memory."""
    seed: int = 0
    """Random seed of adapters, order of the text and dropout."""
    eval_every: int = 100
    """Steps between evaluations on the valid split."""
    eval_tokens: int | None = 65_536
    """Tokens of the valid split used for evaluations during training, the same each time; None: all."""
    save_every: int = 250
    """Steps between checkpoints."""
    keep: int = 1
    """Number of newest checkpoints to keep, beside the best one."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Services that get the metrics, beside metrics.jsonl."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer, learning rate, schedule."""

    def __post_init__(self) -> None:
        problems = type_problems(self)
        if not problems and self.depth is not None and self.depth < 1:
            problems.append(f"depth is {self.depth}; expected a whole number of layers, at least 1.")
        if problems:
            raise ConfigError("This fine-tuning cannot be made:", problems)


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
        **{name: getattr(config, name) for name in _OF_THE_RUN},
    )


def _adapter(config: FinetuneConfig) -> Adapter | None:
    """The adapter that is trained, where it is one."""
    if _TRAINED[config.method] != "adapter":
        return None
    settings = {"rank": config.rank, "alpha": float(config.alpha), "maps": config.maps}
    return ADAPTERS.read({"method": config.method, **settings})
