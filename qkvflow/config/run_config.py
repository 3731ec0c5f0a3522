"""The configuration of a training run: which model, on which text, how it learns."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from qkvflow.config.neuralode_ssm_config import Gpt2Config
from qkvflow.config.start_config import StartConfig
from qkvflow.config.strict import ConfigError, from_dict, strict, to_dict, type_problems

Option = int | float | bool | str


@strict
@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become steps. Decay leaves out norms, biases and time networks (gates)."""

    name: str = "adamw"
    """Any optimizer of optax that needs a learning rate and gradients: adamw, lion, sgd, ..."""
    learning_rate: float = 3e-4
    """Peak of the learning rate, after warm-up."""
    schedule: str = "cosine"
    """Schedule after warm-up: cosine, linear, constant, or any schedule of optax by its full name."""
    warmup: int | None = None
    """Steps over which the learning rate rises to its peak. None: a tenth of the run, at most 100."""
    final: float = 0.1
    """Learning rate at the end of cosine and linear, as a share of the peak."""
    weight_decay: float = 0.1
    """Decoupled weight decay; a step takes this share, times the learning rate, off each weight."""
    clip: float = 1.0
    """Largest norm of the whole gradient; 0 does not clip."""
    base_multiplier: float = 1.0
    """Factor on the learning rate of base weights and norms."""
    time_network_multiplier: float = 1.0
    """Factor on the learning rate of time networks."""
    embedding_multiplier: float = 1.0
    """Factor on the learning rate of embeddings."""
    head_multiplier: float = 1.0
    """Factor on the learning rate of the output projection."""
    options: dict[str, Option] = field(default_factory=dict)
    """Further arguments of the optimizer, such as b2: 0.95."""
    schedule_options: dict[str, Option] = field(default_factory=dict)
    """Arguments of a schedule of optax, such as transition_steps: 100."""

    def __post_init__(self) -> None:
        problems = type_problems(self)
        if not problems:
            positive = ("learning_rate", *_MULTIPLIERS)
            problems += _below(self, ("final", "weight_decay", "clip"), 0)
            if self.warmup is not None:
                problems += _below(self, ("warmup",), 0)
            problems += [
                f"{name} is {getattr(self, name)}; expected a number above 0."
                for name in positive
                if not 0 < getattr(self, name) < float("inf")
            ]
        if problems:
            raise ConfigError("This optimizer cannot be used:", problems)


_MULTIPLIERS = (
    "base_multiplier",
    "time_network_multiplier",
    "embedding_multiplier",
    "head_multiplier",
)


def _below(config: Any, names: tuple[str, ...], least: int) -> list[str]:
    return [
        f"{name} is {getattr(config, name)}; expected at least {least}."
        for name in names
        if not least <= getattr(config, name) < float("inf")
    ]


@strict
@dataclass(frozen=True)
class RunConfig:
    """A training run. All that decides its result is here, and goes into every checkpoint.

    Example:
        >>> run = RunConfig(model="shared", steps=10, architecture=Gpt2Config(hidden_dim=64))
        >>> RunConfig.from_dict(run.to_dict()) == run
        True
    """

    model: str = "time_indexed_mlp"
    """Name of the model: standard, tong_neuralode, time_indexed_mlp, time_indexed_ssm, ..."""
    data: str = "embedded"
    """A corpus (embedded, wikitext-2, wikitext-103, markov, hf:OWNER/NAME) or a path to text."""
    tokenizer: str = "char"
    """byte, char, bpe (trained on the train split), or a path to a tokenizer.json."""
    bpe_size: int = 8192
    """Vocabulary of a trained bpe tokenizer."""
    documents: int | None = 10_000
    """Documents that are streamed of hf:OWNER/NAME; None takes all."""
    steps: int = 1000
    """Training steps; with a start there may be none."""
    batch_size: int = 8
    """Windows of text in a step."""
    length: int = 128
    """Tokens in a window; also the longest sequence of the model."""
    depths: tuple[int, ...] = ()
    """Depths in layers that every training step is drawn from; empty: the model's own depth."""
    accumulate: int = 1
    """Microbatches that a batch is computed in, one after the other, to save memory."""
    seed: int = 0
    """Random seed of weights, order of the text and dropout."""
    seeds: int = 1
    """Models trained at once as one program, with the seeds seed, seed + 1, ..."""
    parallel: Literal["data", "fsdp"] = "data"
    """How several devices share the work: each has all parameters (data), or a slice of them (fsdp)."""

    eval_every: int = 250
    """Steps between evaluations on the valid split."""
    eval_tokens: int | None = 65_536
    """Tokens of the valid split used for evaluations during training, the same each time; None: all."""
    final_tokens: int | None = None
    """Tokens of the valid split used for the final evaluation; None: all."""
    save_every: int = 250
    """Steps between checkpoints."""
    keep: int = 2
    """Number of newest checkpoints to keep, beside the best one."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Services that get the metrics, beside metrics.jsonl."""
    plugins: tuple[str, ...] = ()
    """Python files of your own that register what the run names; on the command line: --plugin FILE."""

    architecture: Gpt2Config = field(default_factory=Gpt2Config)
    """Shape of the model, its weights over depth, its integrator."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer, learning rate, schedule."""
    start: StartConfig | None = None
    """Trained model to go on from, whose shape is then the architecture. None: fresh weights."""

    def __post_init__(self) -> None:
        problems = type_problems(self)
        if not problems:
            problems += _below(self, _COUNTS, 1) + _below(self, ("seed",), 0)
            problems += _below(self, ("steps",), 1 if self.start is None else 0)
            for name in ("eval_tokens", "final_tokens", "documents"):
                if getattr(self, name) is not None:
                    problems += _below(self, (name,), 1)
            problems += _relations(self)
        if problems:
            raise ConfigError("This run cannot be made:", problems)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "RunConfig":
        """The inverse of `to_dict`; unknown names and wrong types are all reported at once."""
        return from_dict(cls, fields)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values, but for those of the model that a fresh run decides."""
        fields = to_dict(self)
        for name in _DECIDED_BY_THE_RUN if self.start is None else ():
            del fields["architecture"][name]
        return fields

    def model_config(self, vocab_size: int) -> Gpt2Config:
        """The model's configuration, once the tokenizer is known; with a start, that of the start."""
        if self.start is not None:
            return self.architecture
        return dataclasses.replace(
            self.architecture, vocab_size=vocab_size, max_position_embeddings=self.length
        )

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seed of every model."""
        return tuple(range(self.seed, self.seed + self.seeds))


_COUNTS = (
    "bpe_size",
    "batch_size",
    "length",
    "accumulate",
    "seeds",
    "eval_every",
    "save_every",
    "keep",
    "log_every",
)
LARGEST_SEED = 2**31 - 1
_DECIDED_BY_THE_RUN = {
    "vocab_size": "the tokenizer's",
    "max_position_embeddings": "the run's length",
}


def _relations(run: RunConfig) -> list[str]:
    problems = []
    if run.accumulate > 0 and run.batch_size % run.accumulate:
        problems.append(
            f"batch_size {run.batch_size} is not divisible by accumulate {run.accumulate}; "
            "microbatches are of one size."
        )
    if run.steps and (run.optimizer.warmup or 0) > run.steps:
        problems.append(
            f"optimizer.warmup is {run.optimizer.warmup} in a run of {run.steps} steps; "
            "expected at most steps, or the learning rate never reaches its peak."
        )
    if any(depth < 1 for depth in run.depths) or len(set(run.depths)) < len(run.depths):
        problems.append(f"depths is {list(run.depths)}; expected different ones, at least 1.")
    if run.seed + run.seeds - 1 > LARGEST_SEED:
        problems.append(f"seed is {run.seed}; expected at most {LARGEST_SEED}.")
    if run.start is not None:
        longest = run.architecture.max_position_embeddings
        if run.length > longest:
            problems.append(f"length is {run.length}; the model that it starts from takes {longest}.")
        return problems
    plain = Gpt2Config()
    for name, meaning in _DECIDED_BY_THE_RUN.items():
        if getattr(run.architecture, name) != getattr(plain, name):
            problems.append(f"architecture.{name} is {meaning} in a run; leave it out.")
    return problems
