"""`standard` is an ordinary transformer: written out in plain jax.numpy, values and gradients."""

import haliax as hax
import jax
import jax.numpy as jnp
import pytest

from qkvflow.models import StandardLM
from tests.support import difference, random_model, small_config, token_ids


def layer_norm(x, norm):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * norm.weight.array + norm.bias.array


def plain_gpt2(model, ids):
    """Pre-norm GPT-2: each layer with its own weights, layer norm, learned positions, gelu."""
    with jax.numpy_rank_promotion("allow"):
        x = model.transformer.wte.weight.array[ids]
        x = x + model.transformer.wpe.weight.array[: ids.shape[1]]
        layers = jax.tree.map(lambda a: a, model.transformer.blocks)
        for i in range(model.config.num_layers):
            table = lambda curve: jax.tree.map(lambda a: a[i], curve.table)  # noqa: B023, E731
            attention, mlp = layers.parts["attention"], layers.parts["mlp"]
            qkv, out = table(attention.part.qkv), table(attention.part.out)
            h = layer_norm(x, table(attention.norm))
            h = (
                jnp.einsum("bte,ehcd->cbhtd", h, qkv.weight.array)
                + qkv.bias.array.transpose(1, 0, 2)[:, None, :, None]
            )
            scores = jnp.einsum("bhtd,bhsd->bhts", h[0], h[1]) / h.shape[-1] ** 0.5
            mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
            h = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1) @ h[2]
            x = x + jnp.einsum("bhtd,hgde->bte", h, out.weight.array) + out.bias.array
            up, down = table(mlp.part.up), table(mlp.part.down)
            h = layer_norm(x, table(mlp.norm))
            h = jax.nn.gelu(jnp.einsum("bte,ecf->btf", h, up.weight.array) + up.bias.array[0])
            x = x + h @ down.weight.array + down.bias.array
        return layer_norm(x, model.transformer.ln_f) @ model.lm_head.weight.array


def rms_norm(x, norm):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * norm.weight.array


def turn(x):
    """Rotary positions for [..., position, channel]: channels k and k + D/2 as a complex number."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[-2])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * jnp.exp(1j * angle)
    return jnp.concatenate([z.real, z.imag], -1)


def plain_llama(model, ids):
    """LLaMA: RMS norm, rotary positions, grouped queries, SwiGLU, no biases."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        x = model.transformer.wte.weight.array[ids]
        blocks = model.transformer.blocks
        for i in range(model.config.num_layers):
            table = lambda curve: jax.tree.map(lambda a: a[i], curve.table)  # noqa: B023, E731
            attention, mlp = blocks.parts["attention"], blocks.parts["mlp"]
            h = rms_norm(x, table(attention.norm))
            h = jnp.einsum("bte,ekcd->bkctd", h, table(attention.part.qkv).weight.array)
            q, k, v = turn(h[:, :, :-2]), turn(h[:, :, -2]), h[:, :, -1]
            scores = jnp.einsum("bkgtd,bksd->bkgts", q, k) / q.shape[-1] ** 0.5
            mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
            weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
            h = jnp.einsum("bkgts,bksd->btkgd", weights, v)
            x = x + jnp.einsum("btkgd,kgde->bte", h, table(attention.part.out).weight.array)
            h = jnp.einsum(
                "bte,ecf->btcf", rms_norm(x, table(mlp.norm)), table(mlp.part.up).weight.array
            )
            x = x + (jax.nn.silu(h[:, :, 0]) * h[:, :, 1]) @ table(mlp.part.down).weight.array
        return rms_norm(x, model.transformer.ln_f) @ model.lm_head.weight.array


@pytest.mark.parametrize(
    ("flavour", "kv_heads", "plain"), [("gpt2", 4, plain_gpt2), ("llama", 2, plain_llama)]
)
def test_standard_is_a_plain_transformer(flavour, kv_heads, plain):
    config = small_config(flavour=flavour, num_kv_heads=kv_heads, num_layers=3)
    model = random_model("standard", config)
    ids = token_ids(config, length=11)
    expected = jax.jit(plain)(model, ids.array)
    scale = float(jnp.abs(expected).max())
    assert difference(model(ids).array, expected) < 1e-5 * scale

    def plain_loss(model):
        logp = jax.nn.log_softmax(plain(model, ids.array))
        return -jnp.mean(jnp.take_along_axis(logp, ids.array[..., None], -1))

    ours = jax.jit(jax.value_and_grad(lambda m: m.compute_loss(ids, ids)))(model)
    theirs = jax.jit(jax.value_and_grad(plain_loss))(model)
    assert abs(float(ours[0]) - float(theirs[0])) < 1e-5 * scale
    largest = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(theirs[1]))
    assert difference(ours[1], theirs[1]) < 1e-5 * max(1.0, largest)


def test_a_tied_head_is_the_transposed_embedding():
    config = small_config(tie_embeddings=True)
    model = random_model("standard", config)
    assert model.lm_head is None
    untied = StandardLM.init(small_config(), key=jax.random.key(0))
    table = model.transformer.wte.weight.array
    head = untied.lm_head
    head = type(head)(hax.named(table.T, ("embed", "vocab")), None, head.In, head.Out)
    same = type(untied)(untied.config, model.transformer, head)
    ids = token_ids(config)
    assert difference(model(ids).array, same(ids).array) < 1e-6
