"""A language model is a vector field integrated over depth: embed, integrate, norm, head."""

import dataclasses
import os
from typing import Any, ClassVar, Self, cast, final

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import Integrator
from qkvflow.models.checks import (
    check_complete,
    check_ids,
    check_segments,
    check_targets,
    checked_time,
)
from qkvflow.models.needs import bytes_of, check_fits, is_abstract
from qkvflow.models.presets import Preset
from qkvflow.nn.adapters import add_adapters
from qkvflow.nn.connections import merged, split
from qkvflow.nn.context import Context, documents_of, positions_in
from qkvflow.nn.depth import LayerPlan
from qkvflow.nn.dynamic import (
    Block,
    embed_norm,
    looks_back,
    pass_layer,
    pass_stacked,
    stack_layers,
)
from qkvflow.nn.linear import Embedding, Linear, dropout
from qkvflow.nn.norm import Norm
from qkvflow.nn.parameters import Table, changed, parameters_inside
from qkvflow.nn.products import rounds_operands
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import Weight, resolve

EMBEDDING_SCALE = 0.1
WRITTEN_OUT = 32
"""Evaluations up to which a pass with caches is written out: faster, but not to compile."""


class Transformer(eqx.Module):
    """Everything between token ids and the output projection."""

    wte: Embedding
    wpe: Embedding | None
    embedding_norm: Norm | None
    blocks: Block
    ln_f: Norm

    @staticmethod
    def init(config: Gpt2Config, *, key: Array) -> "Transformer":
        """Positions are a table here, or rotations inside of attention."""
        k_tokens, k_positions, k_blocks = jax.random.split(key, 3)
        learned = config.choice("positions") == "learned"
        assert config.weights is not None
        blocks = config.weights.layer(lambda k: Block.init(config, key=k), config, key=k_blocks)
        return Transformer(
            wte=Embedding.init(config.Vocab, config.Embed, key=k_tokens, scale=EMBEDDING_SCALE),
            wpe=Embedding.init(config.Position, config.Embed, key=k_positions, scale=EMBEDDING_SCALE)
            if learned
            else None,
            embedding_norm=embed_norm(config) if config.choice("embedding_norm") else None,
            blocks=dataclasses.replace(blocks, there=config.weights.presence(config)),
            ln_f=embed_norm(config),
        )


class LanguageModel(eqx.Module):
    """Maps token ids to the logits of each next token.

    Abstract: the named models and `FlowLM` differ in their preset and in nothing else.
    """

    preset: eqx.AbstractClassVar[Preset | None]

    config: Gpt2Config = eqx.field(static=True)
    transformer: Transformer
    lm_head: Linear | Weight | None

    @classmethod
    def init(cls, config: Gpt2Config, *, key: Array) -> Self:
        """A model with fresh weights; what the config leaves open is as the preset has it."""
        config = check_complete(config if cls.preset is None else cls.preset.fill(config))
        if not is_abstract(key):
            shapes = eqx.filter_eval_shape(_fresh_weights, config, key)
            check_fits(bytes_of(shapes), "The model", "a smaller one")
        return cls(config, *_fresh_weights(config, key))

    def __call__(
        self,
        input_ids: NamedArray,
        t: Time | None = None,
        *,
        key: Array | None = None,
        segments: NamedArray | None = None,
    ) -> NamedArray:
        """Logits with the axes of `input_ids` and "vocab", in float32.

        `input_ids` has an axis "position" and any others. `t` None is the grid of the model's own
        depth; a scalar freezes the weights at one time; a vector is another grid, hence another
        depth. `key` is for dropout; None means evaluation. `segments`, with the axes of `input_ids`,
        has one id for all positions of a document: documents do not see each other, and each has
        positions that begin at 0.
        """
        check_ids(input_ids, self.config, "input_ids")
        time = checked_time(t, self.integrator)
        ids = input_ids.rearrange((..., "position"))
        rows, own = (-1, ids.array.shape[-1]), None
        if segments is not None:
            check_segments(segments, input_ids)
            own = segments.rearrange(ids.axes).array.reshape(rows)
        logits = _logits(self, ids.array.reshape(rows), time, key, own)
        return hax.named(logits.reshape(*ids.array.shape, -1), (*ids.axes, self.config.Vocab))

    def compute_loss(
        self,
        input_ids: NamedArray,
        target_ids: NamedArray,
        t: Time | None = None,
        *,
        key: Array | None = None,
    ) -> Array:
        """Mean cross-entropy of the targets in nats, a float32 scalar."""
        check_ids(input_ids, self.config, "input_ids")
        check_targets(input_ids, target_ids, self.config)
        time = checked_time(t, self.integrator)
        ids = input_ids.rearrange((..., "position"))
        targets = target_ids.rearrange(ids.axes)
        rows = (-1, ids.array.shape[-1])
        return _loss(self, ids.array.reshape(rows), targets.array.reshape(rows), time, key)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a new directory, as safetensors and JSON; `qkvflow.load` reads it."""
        from qkvflow.models.storage import save_model  # which knows all models

        save_model(self, path)

    def embed(
        self,
        ids: Array,
        offset: Array | int = 0,
        *,
        key: Array | None = None,
        documents: Array | None = None,
    ) -> NamedArray:
        """x(0): token and position embeddings of ids [batch, position], in every stream.

        A table of positions is read at those in the document, which begin at 0; rotations need nothing
        of the kind, since only distances count.
        """
        x = self.transformer.wte(ids)
        if self.transformer.wpe is not None and documents is not None:
            x += self.transformer.wpe(positions_in(documents))
        elif self.transformer.wpe is not None:
            x += self._positions(ids.shape[1], offset)[None]
        named = hax.named(x, ("batch", "position", "embed"))
        if self.transformer.embedding_norm is not None:
            named = self.transformer.embedding_norm(named)
        x = dropout(named.array, self.config.embd_pdrop, key)
        return split(hax.named(x.astype(self.config.stream_dtype), named.axes), self.config)

    def _positions(self, length: int, offset: Array | int) -> Array:
        """Rows of the table of positions, from `offset` on."""
        assert self.transformer.wpe is not None
        if isinstance(offset, int):
            return self.transformer.wpe.weight.array[offset : offset + length]
        # Proposals of a draft may reach beyond the last position: they are cut off later, but a NaN
        # among keys or values would be seen before.
        last = self.config.max_position_embeddings - 1
        return self.transformer.wpe(jnp.minimum(jnp.arange(length) + offset, last))

    def head(self, x: NamedArray) -> Array:
        """Logits [batch, position, vocab] of x(1), in float32."""
        normed = self.transformer.ln_f(merged(x, self.config))
        mapped, cap = self.output_map()(normed, rounded=rounds_operands(self.config)), self.config.cap
        logits = mapped.array.astype(jnp.float32)
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def output_map(self) -> Linear:
        """The map from x(1) to logits: the output projection at t = 1, or the token embedding."""
        if self.lm_head is None:
            return _transposed(self.transformer.wte)
        return cast(Linear, resolve(self.lm_head, 1.0))

    def plan(self, t: Time | None = None) -> LayerPlan:
        """The layers of a forward pass: when each is, and how large its step.

        Raises:
            ConfigError: the integrator is adaptive and has no grid over depth.
        """
        return self.integrator.plan(self.config.num_layers, t)

    @property
    def integrator(self) -> Integrator:
        """How the layers are added up."""
        assert self.config.integrator is not None
        return self.config.integrator

    def parameters(self) -> Table:
        """What every array is, by path: one table for optimizers, sharding, adapters and files."""
        table = parameters_inside(self)
        head = {
            path: found
            for path, found in table.items()
            if path.startswith("lm_head.") and found.group == "base"
        }
        return table | changed(head, group="head")

    def layers(self) -> list[list[Any]]:
        """The block of every layer and stage, or all of a stage: what all tokens of a text share."""
        blocks, plan = self.transformer.blocks, self.plan()
        if plan.evaluations > WRITTEN_OUT:
            return stack_layers(blocks, plan)
        return [[resolve(blocks, t) for t in times] for times in plan.times]

    def extend(
        self, layers: list[list[Any]], ids: Array, caches: list[list[Any]], offset: Array | int
    ) -> tuple[Array, list[list[Any]]]:
        """Logits of new ids [batch, position] that follow the `offset` positions in the caches.

        Layers are written out and every cache is an array of its own, so that a loop over tokens
        changes it in place. Of a deep model, which would take minutes to compile, they are scanned.
        Caches are addressed by position: to take back tokens is to go on from a smaller offset.
        """
        x, plan = self.embed(ids, offset), self.plan()
        context, left = Context(offset=offset, rounded=rounds_operands(self.config)), []
        is_deep = plan.evaluations > WRITTEN_OUT
        if looks_back(self.transformer.blocks):
            first = resolve(self.transformer.blocks, plan.times[0, 0]) if is_deep else layers[0][0]
            context = first.begun(x, context)
        if is_deep:
            x, caches = pass_stacked(self.transformer.blocks, layers, x, plan, caches, context)
            return self.head(x), caches
        for blocks, size, cache in zip(layers, plan.sizes, caches):
            x, cache = pass_layer(blocks, x, plan.tableau, size, context._replace(cache=cache))
            left.append(cache)
        return self.head(x), left

    def empty_caches(self, batch: int, length: int, back: int = 0) -> list[list[Any]]:
        """Caches for `length` positions, one for each layer and stage, or one for all of a stage.

        Passes of up to `back` positions can be taken back, in whole or in part.
        """
        curves, plan = self.transformer.blocks, self.plan()
        block, dtype = resolve(curves, 1.0), jnp.dtype(self.config.stream_dtype)

        def of_a_layer(there: dict[str, Any]) -> list[Any]:
            own = dataclasses.replace(block, there=there)
            return [own.empty_cache(batch, length, dtype, back) for _ in range(plan.stages)]

        if plan.evaluations > WRITTEN_OUT:
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (plan.visits, *x.shape)), of_a_layer({}))
        return [of_a_layer(resolve(curves.there, t)) for t in plan.times[:, 0]]


@final
class FlowLM(LanguageModel):
    """A model without a name of its own: its config makes all the choices that tell models apart."""

    preset: ClassVar[Preset | None] = None


@eqx.filter_jit  # one compilation instead of one for the shape of every weight
def _fresh_weights(config: Gpt2Config, key: Array) -> tuple[Transformer, Linear | Weight | None]:
    k_transformer, k_head = jax.random.split(key)
    head = Linear.init((config.Embed,), (config.Vocab,), key=k_head)
    transformer = Transformer.init(config, key=k_transformer)
    untied = None if config.tie_embeddings else head
    blocks, adapted = add_adapters(transformer.blocks, untied, config, key=key)
    return dataclasses.replace(transformer, blocks=blocks), adapted


def _transposed(embedding: Embedding) -> Linear:
    """The output projection that shares the token embedding's table."""
    Vocab, Embed = embedding.weight.axes
    return Linear(embedding.weight.rearrange((Embed, Vocab)), None, (Embed,), (Vocab,))


def final_state(
    model: LanguageModel,
    ids: Array,
    t: Time | None,
    key: Array | None,
    segments: Array | None = None,
) -> NamedArray:
    """x(1) of ids [batch, position]; documents, by ids of the same shape, do not see each other."""
    x, context = _first_state(model, ids, key, segments)
    return model.integrator.follow(model.transformer.blocks, x, model.config, t, context)


def final_state_and_action(
    model: LanguageModel, ids: Array, t: Time | None, key: Array | None
) -> tuple[NamedArray, Array]:
    """x(1) of ids [batch, position], and the integral of the squared speed of x over depth.

    It is a mean over tokens and width: 1 where every number changes by 1 in a unit of depth.
    """
    x, context = _first_state(model, ids, key)
    curves = model.transformer.blocks
    return model.integrator.follow_with_action(curves, x, model.config, t, context)


def _first_state(
    model: LanguageModel, ids: Array, key: Array | None, segments: Array | None = None
) -> tuple[NamedArray, Context]:
    """x(0), and what all layers are told."""
    k_embed, k_blocks = (None, None) if key is None else jax.random.split(key)
    documents = None if segments is None else documents_of(segments)
    x = model.embed(ids, key=k_embed, documents=documents)
    rounded = rounds_operands(model.config)
    return x, Context(key=k_blocks, rounded=rounded, documents=documents)


@eqx.filter_jit
def _logits(
    model: LanguageModel, ids: Array, t: Time | None, key: Array | None, segments: Array | None
) -> Array:
    return model.head(final_state(model, ids, t, key, segments))


def token_losses(
    model: LanguageModel, ids: Array, targets: Array, t: Time | None = None, key: Array | None = None
) -> Array:
    """Cross-entropy of each target [batch, position] in nats, float32; NaN where it is no token id."""
    return losses_of(model.head(final_state(model, ids, t, key)), targets)


def losses_of(logits: Array, targets: Array) -> Array:
    """Cross-entropy of each target [batch, position] by its logits; NaN where it is no token id."""
    vocab = logits.shape[-1]
    # A masked sum is no scatter in the backward pass, which XLA's CPU backend does row by row.
    is_target = jnp.arange(vocab)[None, None] == targets[..., None]
    target_logits = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    known = (targets >= 0) & (targets < vocab)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(known, target_logits, jnp.nan)


@eqx.filter_jit
def _loss(model: LanguageModel, ids: Array, targets: Array, t: Time | None, key: Array | None) -> Array:
    return jnp.mean(token_losses(model, ids, targets, t, key))
