"""The short convolution as a part of its own: against a loop, cached, causal, apart in documents."""

import dataclasses

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.generate import generate, generate_with_drafts
from qkvflow.models import MODELS
from qkvflow.nn import PARTS
from qkvflow.nn.context import Context
from qkvflow.train.muon import is_hidden_matrix
from tests.support import difference, random_model, randomised, small_config, token_ids

WITH_CONV = ("conv", "attention", "mlp")


def random_conv(width, **changes):
    part = PARTS.read({"part": "conv", "width": width})
    return randomised(part.build(small_config(**changes), key=jax.random.key(0), out_gain=1.0))


def random_x(length=7):
    return hax.random.normal(jax.random.key(1), hax.make_axes(batch=2, position=length, embed=16))


@pytest.mark.parametrize("width", [1, 4, 9])
def test_it_is_the_sum_over_the_last_positions(width):
    conv, x = random_conv(width, flavour="gpt2"), random_x()
    kernel, bias = (np.asarray(a.array, np.float64) for a in (conv.kernel.weight, conv.kernel.bias))
    expected = np.zeros(x.array.shape)
    for i, k in np.ndindex(7, width):
        if i - k >= 0:
            expected[:, i] += np.asarray(x.array[:, i - k]) * kernel[width - 1 - k]
    assert difference(conv(x)[0].array, expected + bias) < 1e-5


def test_documents_of_a_row_do_not_see_each_other():
    conv, x = random_conv(4), random_x()
    documents = jnp.array([[0, 0, 0, 1, 1, 1, 1]] * 2)
    whole = conv(x, Context(documents=documents))[0].array
    apart = [conv(x["position", part])[0].array for part in (slice(0, 3), slice(3, 7))]
    assert difference(whole, jnp.concatenate(apart, axis=1)) == 0.0


def test_no_position_sees_a_later_one():
    conv, x = random_conv(4), random_x()
    slopes = jax.jacobian(lambda a: conv(hax.named(a, x.axes))[0].array[0, :, 0])(x.array)
    slopes = np.asarray(slopes)[:, 0, :, 0]
    assert np.all(np.triu(slopes, 1) == 0) and np.all(np.diag(slopes) != 0)


def test_a_model_with_it_generates_and_drafts_as_without_caches():
    config = small_config(flavour="llama", num_layers=3, parts=WITH_CONV)
    model, prompt = random_model("time_indexed_mlp", config), token_ids(config, length=4)
    found = generate(model, prompt, 8, temperature=0.0).array
    text = hax.named(found[:, :-1], ("batch", "position"))
    assert np.array_equal(np.argmax(model(text).array[:, 3:], axis=-1), found[:, 4:])
    how = {"temperature": 0.0, "draft_depth": 1, "draft_tokens": 2}
    assert np.array_equal(generate_with_drafts(model, prompt, 8, **how).text.array, found)


def test_its_kernels_are_no_matrices_and_it_is_a_function_of_depth_like_all_weights():
    config = dataclasses.replace(small_config(), parts=WITH_CONV)
    table = random_model("time_indexed_mlp", config).parameters()
    own = {path: found for path, found in table.items() if ".conv.part.kernel" in path}
    assert any("gates" in path for path in own)
    assert not any(is_hidden_matrix(found) for found in own.values())
    assert "conv" not in {part for preset in MODELS.values() for part in preset.parts}


def test_a_width_that_cannot_be_is_a_sentence():
    with pytest.raises(ConfigError, match="width is 0; expected .*1 to 64"):
        Gpt2Config(parts=({"part": "conv", "width": 0}, "mlp"))
