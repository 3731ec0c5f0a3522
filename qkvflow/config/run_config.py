"""The configuration of a training run: which model, on which text, how it learns."""

import dataclasses
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

from qkvflow.config.neuralode_ssm_config import Gpt2Config
from qkvflow.config.strict import (
    COUNTS,
    LAYERS,
    Bound,
    Config,
    Count,
    Depth,
    NotNegative,
    NotNegativeInt,
    Positive,
    Probability,
    Share,
    shown,
    strict,
)

Option = int | float | bool | str
LARGEST_SEED = COUNTS - 1
MOST_SEEDS = 1000
"""Of one program, or of one experiment."""
LARGEST_BPE = 2**20
"""Ids of a trained tokenizer, which makes room for all of them before it begins."""


@strict
@dataclass(frozen=True)
class GroupConfig(Config):
    """How a group of arrays is trained, where that differs from the others."""

    refusal = "This group cannot be trained:"

    optimizer: str | None = None
    """Optimizer for the group; None: the optimizer of the run."""
    rate: Positive = 1.0
    """Factor by which the learning rate is multiplied for the group."""
    weight_decay: NotNegative | None = None
    """Decoupled weight decay for the group; None: the weight decay of the run."""


@strict
@dataclass(frozen=True)
class OptimizerConfig(Config):
    """How gradients become steps. Decay leaves out norms, biases and time networks (gates)."""

    refusal = "This optimizer cannot be used:"

    name: str = "adamw"
    """Optimizer: muon, or an optax one that takes a learning rate and gradients: adamw, lion, ..."""
    learning_rate: Positive = 3e-4
    """Peak learning rate, after warm-up."""
    schedule: str = "cosine"
    """Learning-rate schedule after warm-up: cosine, linear, constant, wsd (constant, then a linear
    decay over the last fifth; schedule_options: {decay: 0.2}), or the full name of any optax
    schedule."""
    warmup: NotNegativeInt | None = None
    """Number of warm-up steps, over which the learning rate rises to its peak; at most half of the run.
    None: a tenth of the run, at most 100."""
    final: NotNegative = 0.1
    """Final learning rate of cosine, linear and wsd schedules, as a share of the peak."""
    weight_decay: NotNegative = 0.1
    """Decoupled weight decay: each step shrinks the weights by this share times the learning rate."""
    clip: NotNegative = 1.0
    """Maximum global gradient norm, to which larger gradients are clipped; 0: no clipping."""
    ema: Probability = 0.0
    """Decay of an exponential moving average of the weights, which then is what is evaluated and
    exported; 0.99 averages over about 100 steps. 0: no averaging."""
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    """Settings for some of the arrays, selected by group (embedding, base, time_network, head), kind
    (matrix, vector, norm, bias) or path pattern: {embedding: {rate: 0.3}}. The last match wins."""
    options: dict[str, Option] = field(default_factory=dict)
    """Additional arguments of the optimizer, such as b2: 0.95."""
    schedule_options: dict[str, Option] = field(default_factory=dict)
    """Additional arguments of the schedule, such as decay for wsd; its peak is learning_rate."""

    def problems(self) -> list[str]:
        """Options that no file of a run could hold."""
        return [
            f"{field}.{name} is {value}; expected a finite number."
            for field in ("options", "schedule_options")
            for name, value in getattr(self, field).items()
            if isinstance(value, float) and not math.isfinite(value)
        ]


@strict
@dataclass(frozen=True)
class StartConfig(Config):
    """A trained model that a run starts from; `qkvflow.finetune` makes it."""

    refusal = "This run has no start:"

    checkpoint: str = ""
    """Directory of the base model: a run, a checkpoint, or an exported model."""
    digest: str = ""
    """SHA-256 of the arrays of the base model; a different model in its directory is refused."""
    depth: Depth | None = None
    """Number of layers at which the base model's weights are sampled; None: keep its depth and weight
    curves."""
    train: Literal["all", "adapter", "embeddings_and_norms"] = "all"
    """Arrays to train; all others stay unchanged."""
    also: tuple[str, ...] = ()
    """Additional arrays to train, by path pattern: transformer.wte.*, lm_head.*."""

    def problems(self) -> list[str]:
        """Of a base, both its place and its digest are needed."""
        if self.checkpoint and self.digest:
            return []
        return ["checkpoint and digest are both needed; qkvflow finetune writes them."]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """Settings common to training from scratch and fine-tuning: batches, evaluations, checkpoints."""

    least_coverage: Share = 0.99
    """Minimum share of the text's bytes that the tokenizer must reproduce; below it, the text is
    refused."""
    steps: NotNegativeInt = 1000
    """Number of training steps."""
    batch_size: Count = 8
    """Windows of text per step."""
    accumulate: Count = 1
    """Number of microbatches to split each batch into, to save memory (gradient accumulation)."""
    seed: NotNegativeInt = 0
    """Random seed for initial weights, data order and dropout."""

    eval_every: Count = 250
    """Training steps between evaluations on the valid split."""
    eval_tokens: Count | None = 65_536
    """Tokens of the valid split used for evaluations during training, always the same; None: all."""
    save_every: Count = 250
    """Training steps between checkpoints."""
    keep: Count = 2
    """Number of latest checkpoints to keep, besides the best one."""
    log_every: Count = 10
    """Training steps between entries in metrics.jsonl."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Experiment trackers to also send the metrics to; metrics.jsonl is always written."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer, learning rate, schedule."""


@strict
@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig):
    """A training run. Everything that determines its result is here, and goes into every checkpoint.

    Examples:
        >>> run = RunConfig(model="shared", steps=10, architecture=Gpt2Config(hidden_dim=64))
        >>> RunConfig.from_dict(run.to_dict()) == run
        True
    """

    refusal = "This run cannot be made:"

    model: str = "time_indexed_mlp"
    """Name of the model: standard, tong_neuralode, time_indexed_mlp, time_indexed_ssm, ..."""
    data: str = "embedded"
    """Text to train on: a corpus (embedded, wikitext-2, wikitext-103, markov, hops, addition,
    hf:OWNER/NAME) or a path."""
    documents: Count | None = 10_000
    """Number of documents to stream from hf:OWNER/NAME; None: all."""
    tokenizer: str = "char"
    """Tokenizer: byte, char, bpe (trained on the train split), or a path to a tokenizer.json."""
    bpe_size: Annotated[int, Bound(f"1 to {LARGEST_BPE:,}", 1, LARGEST_BPE + 1)] = 8192
    """Vocabulary size, if the tokenizer is bpe."""
    length: Count = 128
    """Tokens per window; also the maximum sequence length of the model."""
    depths: tuple[int, ...] = ()
    """Numbers of layers to train at, of which each step draws one; empty: the model's own depth."""
    depth_weights: tuple[float, ...] = ()
    """Relative frequency of each value in depths; empty: all equal."""
    depth_jitter: Probability = 0.0
    """Random shift of the layer times in each step, as a share of the spacing between layers, so that
    weights are also trained between layers; needs depths."""
    deepen_at: Probability = 0.0
    """Initial share of the run that trains only at the smallest value in depths; 0: none."""
    taught: Share = 0.0
    """Weight of distillation in the loss at shallow depths, 0 to 1; the teacher is the largest value in
    depths, which is then trained in every step."""
    answers_only: bool = False
    """Compute the loss, in training and evaluation, on the tokens of answers only; needs a
    question-answer corpus (hops, addition)."""
    speed_penalty: NotNegative = 0.0
    """Weight of an extra loss term, the squared speed of the residual stream averaged over tokens and
    width and integrated over depth (optimal-transport regularisation); 0: none."""
    seeds: Annotated[int, Bound(f"1 to {MOST_SEEDS:,}", 1, MOST_SEEDS + 1)] = 1
    """Number of models to train together in one program, with seeds seed, seed + 1, ..."""
    parallel: Literal["data", "fsdp"] = "data"
    """Parallelism over several devices. data: replicated parameters. fsdp: sharded parameters."""
    continued: tuple[int, ...] = ()
    """Numbers of steps at which the run ended before --continue-to extended it. Up to each, the
    learning rate is that of a run of this length; then it warms up to that of the longer run."""
    final_tokens: Count | None = None
    """Tokens of the valid split used for the final evaluation; None: all."""
    plugins: tuple[str, ...] = ()
    """Python files that register variants named in this run; on the command line use --plugin FILE."""

    architecture: Gpt2Config = field(default_factory=Gpt2Config)
    """Shape of the model, its weights over depth, its integrator."""
    start: StartConfig | None = None
    """Trained model to start from, which determines the architecture. None: random initial weights."""

    def problems(self) -> list[str]:
        """A sentence for every relation that does not hold."""
        return _relations(self) + _start_relations(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values, but for those of the model that a fresh run decides."""
        fields = super().to_dict()
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


_DECIDED_BY_THE_RUN = {
    "vocab_size": "the tokenizer",
    "max_position_embeddings": "length",
}


def _relations(run: RunConfig) -> list[str]:
    problems = [
        f"{name} is empty; expected a name or a path."
        for name in ("data", "tokenizer")
        if not getattr(run, name)
    ]
    if run.accumulate > 0 and run.batch_size % run.accumulate:
        problems.append(
            f"batch_size {run.batch_size} is not divisible by accumulate {run.accumulate}; "
            "all microbatches have the same size."
        )
    stages = (0, *run.continued, run.steps)
    if run.continued and any(later <= earlier for earlier, later in pairwise(stages)):
        problems.append(
            f"continued is {shown(list(run.continued))} in a run of {run.steps} steps; expected the "
            "numbers of steps at which it ended before, in increasing order."
        )
    if not all(1 <= depth < LAYERS for depth in run.depths) or len({*run.depths}) < len(run.depths):
        expected = f"distinct numbers, at least 1, below {LAYERS:,}"
        problems.append(f"depths is {shown(list(run.depths))}; expected {expected}.")
    problems += _depth_relations(run)
    if run.seed <= LARGEST_SEED < run.seed + run.seeds - 1:
        last = run.seed + run.seeds - 1
        problems.append(f"the last of {run.seeds} seeds is {last}; expected at most {LARGEST_SEED}.")
    return problems


def _depth_relations(run: RunConfig) -> list[str]:
    """What is said of depths where there are none, or not of each of them."""
    problems = [
        f"{name} is {getattr(run, name)} but depths is empty; set depths as well."
        for name in ("depth_jitter", "deepen_at", "taught")
        if getattr(run, name) and not run.depths
    ]
    if run.answers_only and run.taught:
        problems.append(f"answers_only: taught is {run.taught}, which uses all tokens; leave one out.")
    if run.speed_penalty and run.taught:
        problems.append(
            f"speed_penalty cannot be combined with taught, which is {run.taught}; leave one out."
        )
    weights = run.depth_weights
    are_weights = all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0
    if weights and (len(weights) != len(run.depths) or not are_weights):
        problems.append(
            f"depth_weights is {shown(list(weights))}; expected one number, at least 0, for each "
            "of depths, and not all 0."
        )
    return problems


def _start_relations(run: RunConfig) -> list[str]:
    """What a base decides, or where there is none, the run."""
    if run.start is not None:
        longest = run.architecture.max_position_embeddings
        taken = f"length is {run.length}; the model that it starts from takes at most {longest}."
        return [taken] if run.length > longest else []
    plain = Gpt2Config()
    problems = [
        f"architecture.{name} is set by {meaning} in a run; leave it out."
        for name, meaning in _DECIDED_BY_THE_RUN.items()
        if getattr(run.architecture, name) != getattr(plain, name)
    ]
    return problems if run.steps else ["steps is 0; expected at least 1.", *problems]
