"""What a run begins with where it does not begin with fresh weights."""

from dataclasses import dataclass
from typing import Literal

from qkvflow.config.strict import Config, Depth, strict


@strict
@dataclass(frozen=True)
class StartConfig(Config):
    """A trained model that a run goes on from; `qkvflow.finetune` makes it."""

    refusal = "This run has no start:"

    checkpoint: str = ""
    """Directory of the base: a run, a checkpoint, or an exported model."""
    digest: str = ""
    """sha256 of the base's arrays: another base under that name is refused."""
    depth: Depth | None = None
    """Layers at which the weights of the base are sampled; None: its own depth, and its own curves."""
    train: Literal["all", "adapter", "embeddings_and_norms"] = "all"
    """Arrays that change; the others stay as they are, to the bit."""
    also: tuple[str, ...] = ()
    """Further arrays that change, by patterns over their paths: transformer.wte.*, lm_head.*."""

    def problems(self) -> list[str]:
        """Of a base, both its place and its digest are needed."""
        if self.checkpoint and self.digest:
            return []
        return ["checkpoint and digest are both needed; qkvflow finetune writes them."]
