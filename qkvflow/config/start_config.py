"""What a run begins with where it does not begin with fresh weights."""

from dataclasses import dataclass
from typing import Literal

from qkvflow.config.strict import ConfigError, strict, type_problems


@strict
@dataclass(frozen=True)
class StartConfig:
    """A trained model that a run goes on from; `qkvflow.finetune` makes it."""

    checkpoint: str = ""
    """Directory of the base: a run, a checkpoint, or an exported model."""
    digest: str = ""
    """sha256 of the base's arrays: another base under that name is refused."""
    depth: int | None = None
    """Layers at which the weights of the base are sampled; None: its own depth, and its own curves."""
    train: Literal["all", "adapter", "embeddings_and_norms"] = "all"
    """Arrays that change; the others stay as they are, to the bit."""
    also: tuple[str, ...] = ()
    """Further arrays that change, by patterns over their paths: transformer.wte.*, lm_head.*."""

    def __post_init__(self) -> None:
        problems = type_problems(self)
        if not problems and not (self.checkpoint and self.digest):
            problems.append("checkpoint and digest are both needed; qkvflow finetune writes them.")
        if not problems and self.depth is not None and self.depth < 1:
            problems.append(f"depth is {self.depth}; expected a whole number of layers, at least 1.")
        if problems:
            raise ConfigError("This run has no start:", problems)
