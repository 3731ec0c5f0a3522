"""The vector field over depth, and the loop with fixed steps that follows it.

    dx/dt = f(x, t; W(t)),  0 < t <= 1

Symbols: x is the residual stream, t the continuous layer index, h a step over depth.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array, lax

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import PARTS as PARTS
from qkvflow.nn import stream
from qkvflow.nn.attention import Attention as Attention
from qkvflow.nn.connections import Connection, others_unchanged, read, worked_on, written
from qkvflow.nn.context import PLAIN, Context
from qkvflow.nn.conv import ShortConv as ShortConv
from qkvflow.nn.depth import LayerPlan, Tableau
from qkvflow.nn.linear import Linear, dropout
from qkvflow.nn.mlp import MLP as MLP
from qkvflow.nn.norm import Norm
from qkvflow.nn.products import is_matrix_product
from qkvflow.nn.ssm import SelectiveSSM as SelectiveSSM
from qkvflow.nn.weights import is_weight, resolve

FULL, DOTS = None, is_matrix_product
_GATE = 0x67617465  # sets the keys of gates apart from those of the parts
SHORT = 8
"""Evaluations of the block up to which the loop over depth is written out."""
Watch = Callable[[NamedArray, NamedArray], Array]
"""What is kept of a layer, made of the stream before and after it."""
ACTIVATIONS, FITS = 32, 2**31
"""What an evaluation keeps for the backward pass, in residual streams; and the bytes that fit."""


class Sublayer(eqx.Module):
    """A norm and the part behind it."""

    norm: Norm
    part: Any
    connection: Connection | None
    """To several streams; None: there is one."""
    pdrop: float = eqx.field(static=True)

    def __call__(self, x: NamedArray, context: Context = PLAIN) -> tuple[NamedArray, Any]:
        """What this part adds to x, and its cache."""
        for_part, for_dropout = context.split(2)
        shares = None if self.connection is None else self.connection.at(x)
        change, cache = self.part(self.norm(x if shares is None else read(x, shares)), for_part)
        change = hax.named(dropout(change.array, self.pdrop, for_dropout.key), change.axes)
        return change if shares is None else written(x, change, shares), cache

    def seen(self, x: NamedArray) -> NamedArray:
        """What the part itself sees of x."""
        return self.norm(x if self.connection is None else read(x, self.connection.at(x)))


class Block(eqx.Module):
    """The field f(x): the sum of what the parts add.

    parallel: every part sees x. sequential: every part sees x and what the parts before it added,
    f(x) = a(x) + m(x + a(x)), so that x + f(x) is the usual pre-norm transformer layer.
    """

    parts: dict[str, Sublayer]
    mix: Linear | None
    """Shares a of x and b of x(0): then f(x) = u - x + what parts add to u, with u = a x + b x(0)."""
    gate: stream.InputGate | None
    """By what each token sees of x(0) is scaled; None: by nothing."""
    ends: Connection | None
    """Of the stream that a pass through a loop works on with all streams, at its end."""
    there: dict[str, Any]
    """Of every part that is not in all layers, whether it is in this one."""
    names: tuple[str, ...] = eqx.field(static=True)
    sequential: bool = eqx.field(static=True)

    @staticmethod
    def init(config: Gpt2Config, *, key: Array) -> "Block":
        """With step 1 the outputs start smaller, by sqrt(parts * layers), as in GPT-2; or at zero."""
        chosen = config.parts or ()
        additions = len(chosen) * config.num_layers
        small = config.integrator is not None and config.integrator.unit_step
        gain = 0.0 if config.choice("zero_outputs") else additions**-0.5 if small else 1.0
        parts: dict[str, Sublayer] = {}
        for part, k in zip(chosen, jax.random.split(key, len(chosen))):
            norm = embed_norm(config)
            built = part.build(config, key=k, out_gain=gain)
            meets = connection(config, "layers", len(parts), key=jax.random.fold_in(k, 1))
            parts[part.name] = Sublayer(norm, built, meets, config.resid_pdrop)
        mixes = config.choice("mix_embedding")
        mix = Linear.of_values("mix", (1.0, 0.0)) if mixes else None
        k_gate = jax.random.fold_in(key, _GATE)
        gate = None
        if mixes == "gate":
            seen = config.streams if config.mix_streams == "layers" else 1
            gate = stream.InputGate.init(embed_norm(config), config.Embed, seen, key=k_gate)
        ends = connection(config, "ends", 0, key=jax.random.fold_in(k_gate, 1))
        names = tuple(part.name for part in chosen)
        return Block(parts, mix, gate, ends, {}, names, config.order == "sequential")

    def __call__(self, x: NamedArray, context: Context = PLAIN) -> tuple[NamedArray, Any]:
        """f(x) on (batch, position, embed), and the caches of the parts where they are given."""
        whole, x = x, self._worked_on(x)
        entered = self._entered(x, context)
        caches, added = {}, None
        for name, told in zip(self.names, context.split(len(self.names))):
            seen = stream.read(entered, added, sequential=self.sequential)
            own = told._replace(cache=context.cache and context.cache[name])
            change, caches[name] = self._of_part(name, seen, own)
            added = stream.add(added, stream.where(context.active, change))
        assert added is not None
        added = added if self.mix is None else added + entered - x
        added = stream.where(context.active, added)
        added = added if self.ends is None else others_unchanged(added, whole)
        return added, context.cache and caches

    def noted(self, x: NamedArray, context: Context) -> dict[str, Any]:
        """The caches with what parts that see x itself keep of it, marked, before they are called."""
        entered, left = self._entered(self._worked_on(x), context), dict(context.cache)
        for name in self.names[:1] if self.sequential else self.names:
            layer, cache = self.parts[name], left[name]
            if hasattr(layer.part, "remembered") and cache is not None and not cache.has_new:
                told = context._replace(cache=cache)
                left[name] = layer.part.remembered(layer.seen(entered), told).marked(True)
        return left

    def remembered(self, x: NamedArray, context: Context) -> dict[str, Any]:
        """The caches after positions whose state is x, and to which nothing is added here."""
        entered, left = self._entered(self._worked_on(x), context), self.noted(x, context)
        for name, cache in left.items():
            if getattr(cache, "has_new", False):
                left[name] = cache.marked(False)
            elif cache is not None:
                _, left[name] = self.parts[name](entered, context._replace(cache=cache))
        return left

    def _worked_on(self, x: NamedArray) -> NamedArray:
        """What the parts are connected with: all of x, but where streams meet at the ends of passes."""
        return x if self.ends is None else worked_on(x, x.array.shape[-1] // (self.ends.streams + 1))

    def after(self, x: NamedArray) -> NamedArray:
        """x as the next layer has it: where a pass ends here, all streams have met."""
        is_end = self.there.get("ends", True)
        if self.ends is None or (not isinstance(is_end, Array) and not is_end):
            return x
        ends = self.ends
        if isinstance(is_end, Array):
            return lax.cond(is_end, lambda: ends.joined(x), lambda: x)
        return ends.joined(x)

    def _of_part(self, name: str, seen: NamedArray, own: Context) -> tuple[NamedArray, Any]:
        """What a part adds and its cache; nothing, and no time is spent, where it is not there."""
        is_there, part = self.there.get(name, True), self.parts[name]
        if isinstance(is_there, Array):
            return lax.cond(is_there, lambda: part(seen, own), lambda: (_nothing(seen), own.cache))
        return part(seen, own) if is_there else (_nothing(seen), own.cache)

    def _entered(self, x: NamedArray, context: Context) -> NamedArray:
        """What the parts see of x and x(0)."""
        if self.mix is None:
            return x
        gate = None if self.gate is None else self.gate(x)
        return stream.mixed(x, context.embedding, self.mix.weight.array, gate)

    def begun(self, x: NamedArray, context: Context) -> Context:
        """What all layers are told of x(0), if this is the first one's block."""
        attention, x = self.parts.get("attention"), self._worked_on(x)
        context = context._replace(embedding=x)
        if attention is None or attention.part.value_mix is None:
            return context
        normed = attention.seen(self._entered(x, context))
        values = attention.part.values(normed, rounded=context.rounded)
        return context._replace(first_values=values)

    def empty_cache(self, batch: int, length: int, dtype: jnp.dtype, back: int = 0) -> dict[str, Any]:
        """One empty cache for every part, from which a text can go back by so many positions."""
        return {
            n: self.parts[n].part.empty_cache(batch, length, dtype, back)
            if self.there.get(n, True)
            else None
            for n in self.names
        }


def _nothing(x: NamedArray) -> NamedArray:
    """What a part adds that is not there."""
    return hax.named(jnp.zeros_like(x.array), x.axes)


def looks_back(block: Block) -> bool:
    """Whether the layers of a block, of curves or not, have to be told of x(0)."""
    attention = block.parts.get("attention")
    return block.mix is not None or (attention is not None and attention.part.value_mix is not None)


def connection(config: Gpt2Config, where: str, place: int, *, key: Array) -> Connection | None:
    """A fresh connection to several streams, if they meet there."""
    if config.streams == 1 or config.mix_streams != where:
        return None
    return Connection.init(config, embed_norm(config), place, key=key)


def embed_norm(config: Gpt2Config) -> Norm:
    """A norm over the residual stream."""
    kind = config.choice("norm_kind")
    return Norm.init(config.Embed, kind, bias=config.bias, epsilon=config.norm_epsilon)


def map_name(path: str) -> str:
    """What a reader calls what is at a path of a block: mlp.up, not parts.mlp.part.up.

    The norm inside of a part keeps its full name, since the one before the part has the short one.
    """
    name = path.removeprefix("parts.")
    return name if name.endswith(".part.norm") else name.replace(".part.", ".")


def integrate(
    curves: Any,
    x: NamedArray,
    plan: LayerPlan,
    context: Context = PLAIN,
    *,
    remat: Literal["auto", "none", "dots", "full"] = "auto",
    watch: Watch | None = None,
) -> tuple[NamedArray, Array | None]:
    """Follow a block of curves over depth with fixed steps: x(1), and what `watch` keeps of layers.

    This is one scan, so that compiling takes no longer for a deep model; but a short one is written
    out, which spares it the copies of weights and activations in and out of stacked arrays and any
    recomputation, where remat is "auto".
    """
    if looks_back(curves):
        context = resolve(curves, plan.times[0, 0]).begun(x, context)
    weights, structure = jax.tree.flatten(curves, is_leaf=is_weight)
    early = [[w.before_loop(plan.times[:, j]) for w in weights] for j in range(plan.stages)]
    keys = None if context.key is None else jax.random.split(context.key, plan.visits)

    def layer(x: NamedArray, inputs: Any) -> tuple[NamedArray, Array | None]:
        early, size, key = inputs
        blocks = [
            jax.tree.unflatten(structure, [w.inside_loop(e) for w, e in zip(weights, stage)])
            for stage in without_layer_axis(early)
        ]
        after, _ = pass_layer(blocks, x, plan.tableau, size, context._replace(key=key))
        return after, None if watch is None else watch(x, after)

    written_out = remat == "auto" and _is_small(plan.evaluations, x)
    if remat != "none" and not written_out:
        layer = jax.checkpoint(layer, policy=FULL if remat == "full" else DOTS, prevent_cse=False)
    inputs = (early, jnp.asarray(plan.sizes), keys)
    return lax.scan(layer, x, inputs, unroll=plan.sizes.size if written_out else 1)


def stack_layers(curves: Any, plan: LayerPlan) -> list[list[Any]]:
    """What `pass_stacked` slices, of each stage: the maps of all layers, made once for all tokens."""
    weights = jax.tree.leaves(curves, is_leaf=is_weight)
    return [
        [w.at(times) if w.operations() else w.before_loop(times) for w in weights]
        for times in (plan.times[:, j] for j in range(plan.stages))
    ]


def pass_stacked(
    curves: Any,
    stacked: list[list[Any]],
    x: NamedArray,
    plan: LayerPlan,
    caches: Any,
    context: Context,
) -> tuple[NamedArray, Any]:
    """All layers in one scan; caches have a leading axis of layers, and are changed in place."""
    weights, structure = jax.tree.flatten(curves, is_leaf=is_weight)

    def layer(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        x, caches = carry
        i, early, size = inputs
        blocks = [
            jax.tree.unflatten(
                structure, [e if w.operations() else w.inside_loop(e) for w, e in zip(weights, stage)]
            )
            for stage in without_layer_axis(early)
        ]
        own = jax.tree.map(lambda all: lax.dynamic_index_in_dim(all, i, keepdims=False), caches)
        x, own = pass_layer(blocks, x, plan.tableau, size, context._replace(cache=own))
        caches = jax.tree.map(
            lambda all, one: lax.dynamic_update_index_in_dim(all, one, i, 0), caches, own
        )
        return (x, caches), None

    visits = jnp.arange(plan.visits), stacked, jnp.asarray(plan.sizes)
    return lax.scan(layer, (x, caches), visits)[0]


def pass_layer(
    blocks: Sequence[Block], x: NamedArray, tableau: Tableau, size: Array | np.ndarray, context: Context
) -> tuple[NamedArray, list[Any]]:
    """One layer, from its blocks, one for each stage; the context's caches are one for each, too."""
    slopes: list[NamedArray] = []
    left = []
    for j, block in enumerate(blocks):
        at = stream.write(x, size, tableau.a[j], slopes)
        key = None if context.key is None else jax.random.fold_in(context.key, j)
        slope, cache = block(at, context._replace(key=key, cache=context.cache and context.cache[j]))
        slopes.append(slope)
        left.append(cache)
    return blocks[-1].after(stream.write(x, size, tableau.b, slopes)), left


def _is_small(evaluations: int, x: NamedArray) -> bool:
    """Whether the loop is quick to compile written out, and what its backward pass needs fits."""
    return evaluations <= SHORT and ACTIVATIONS * evaluations * x.array.nbytes <= FITS


def without_layer_axis(stacked: Any) -> Any:
    """Take the name of the layer axis off named arrays that a scan has sliced along it."""

    def sliced(leaf: Any) -> Any:
        return hax.named(leaf.array, leaf.axis_names[1:]) if isinstance(leaf, NamedArray) else leaf

    return hax.tree_util.tree_map(sliced, stacked)
