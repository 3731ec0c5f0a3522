"""Our models behind Levanter's interface: the same loss and gradients, documents kept apart."""

import dataclasses

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from levanter.layers.attention import AttentionMask
from levanter.models.lm_model import LmExample

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.levanter import QkvflowConfig, QkvflowLM
from qkvflow.models import MODELS, count_parameters
from qkvflow.models.counting import forward_flops
from qkvflow.models.language_model import final_state, losses_of
from tests.support import difference, random_model, small_config, token_ids

LENGTH = 17


def behind_levanter(name, flavour):
    """A small model at random parameters, behind Levanter's interface."""
    config = small_config(flavour=flavour, max_position_embeddings=LENGTH)
    plain = Gpt2Config()
    left_open = {name: getattr(plain, name) for name in ("vocab_size", "max_position_embeddings")}
    architecture = dataclasses.replace(config, **left_open)
    settings = QkvflowConfig(max_seq_len=LENGTH, name=name, architecture=architecture)
    return QkvflowLM(random_model(name, config), settings)


def segments_like(ids):
    of_row = hax.named(jnp.asarray(np.repeat([0, 1, 2], [5, 8, 4]), jnp.int32), "position")
    return of_row.broadcast_axis(ids.resolve_axis("batch"))


def loss_of_levanter(model, ids, mask):
    weight = LmExample.causal_loss_mask(ids.resolve_axis("position")).astype(jnp.float32)
    example = LmExample(tokens=ids, loss_weight=weight, attn_mask=mask)
    return model.compute_next_token_loss(example).scalar()


def loss_of_ours(model, ids, segments):
    state = final_state(model.model, ids.array, None, None, segments)
    return jnp.mean(losses_of(model.model.head(state)[:, :-1], ids.array[:, 1:]))


@pytest.mark.parametrize("flavour", ["gpt2", "modern"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_ours(name, flavour):
    model = behind_levanter(name, flavour)
    ids = token_ids(model.model.config, length=LENGTH)
    segments = segments_like(ids)
    mask = AttentionMask.causal().with_segment_ids(segments)
    plain = segments.rearrange(("batch", "position")).array
    theirs, ours = (
        eqx.filter_jit(eqx.filter_value_and_grad(loss))(model, ids, told)
        for loss, told in ((loss_of_levanter, mask), (loss_of_ours, plain))
    )
    assert difference(theirs, ours) < 1e-6


def test_logits_are_ours_and_so_is_their_cap():
    model = behind_levanter("standard", "modern")
    ids = token_ids(model.model.config, length=LENGTH)
    assert difference(model(ids, AttentionMask.causal()).array, model.model(ids).array) < 1e-5


def test_masks_that_say_more_are_refused():
    model = behind_levanter("standard", "gpt2")
    ids = token_ids(model.model.config, length=LENGTH)
    with pytest.raises(ConfigError, match="no window, offset or further mask"):
        model.activations(ids, AttentionMask.causal(sliding_window=4))


def test_counts_are_ours():
    config = behind_levanter("time_indexed_ssm", "llama").config
    shapes = config.shapes(13)
    own = forward_flops(shapes, 1000, LENGTH) / (1000 * LENGTH)
    assert config.flops_per_token(13, LENGTH) == pytest.approx(own, rel=1e-2)
    assert config.total_trainable_params(13) == count_parameters(shapes).total


def test_a_vocabulary_cannot_be_resized():
    with pytest.raises(NotImplementedError, match="keeps its 13 token ids; 20 were asked for"):
        behind_levanter("shared", "gpt2").resize_vocab(20)


def test_documents_are_told_apart_by_the_end_of_text():
    """As Levanter's data has it by default, against each document alone."""
    model = behind_levanter("time_indexed_ssm", "gpt2")
    (row,) = np.asarray(token_ids(model.model.config, batch=1, length=LENGTH).array)
    row = np.where(row == 12, 0, row)
    row[6] = 12
    example = LmExample.causal(hax.named(jnp.asarray(row), "position"), eos_id=12)
    packed = model.activations(example.tokens, example.attn_mask).array
    for part in (slice(0, 7), slice(7, LENGTH)):
        alone = model.activations(hax.named(jnp.asarray(row[part]), "position")).array
        assert difference(packed[part], alone) < 1e-5


def test_it_is_built_as_levanter_builds_it():
    settings = behind_levanter("looped", "llama").config
    built = eqx.filter_eval_shape(settings.build, hax.Axis("vocab", 13), key=jax.random.PRNGKey(0))
    assert built.get_lm_head().axes == (settings.Embed, built.Vocab)
    assert built.Pos.size == LENGTH
