"""Documents in one row, by segment ids: as each alone, in value and in every gradient."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.models import MODELS
from qkvflow.models.language_model import final_state, losses_of
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.nn.context import documents_of, positions_in
from tests.support import difference, random_model, small_config, token_ids

LENGTHS = ((1, 7, 8, 3, 17), (21, 15))
"""Of the documents of two rows of 36; the state-space part of the tests has chunks of 8."""
LONG = ((70, 9, 45), (124,))
"""Across the blocks of queries that attention on CPU has."""


def segments_of(lengths):
    """Ids of documents; one is used again, for a document that is not beside the first of it."""
    rows = [np.repeat(np.arange(len(row)) % 3, row) for row in lengths]
    return jnp.asarray(np.stack(rows), jnp.int32)


def alone(lengths, ids):
    """Every document at the start of a row of its own, and where (row, position) each token is then."""
    total = sum(lengths[0])
    rows, places, number = [], [], 0
    for row, counts in zip(np.asarray(ids), lengths):
        for document in np.split(row, np.cumsum(counts)[:-1]):
            rows.append(np.pad(document, (0, total - len(document))))
            places += [(number, position) for position in range(len(document))]
            number += 1
    return jnp.asarray(np.stack(rows)), np.array(places)


def loss_and_gradients(model, ids, segments, places, targets):
    """Cross-entropies of the tokens at some places, and the gradient of their mean."""

    @jax.jit
    def losses(arrays):
        state = final_state(with_arrays(model, arrays), ids, None, None, segments)
        logits = with_arrays(model, arrays).head(state)[places[:, 0], places[:, 1]]
        found = losses_of(logits[None], targets[None])[0]
        return jnp.mean(found), found

    (_, found), gradients = jax.jit(jax.value_and_grad(losses, has_aux=True))(arrays_of(model))
    return found, gradients


def errors(model, lengths):
    """The largest differences of losses and of gradients between documents in a row and alone."""
    ids = token_ids(model.config, length=sum(lengths[0])).array
    targets = token_ids(model.config, length=ids.size, batch=1, seed=2).array[0]
    every = np.stack(np.indices(ids.shape), axis=-1).reshape(-1, 2)
    packed = loss_and_gradients(model, ids, segments_of(lengths), every, targets)
    separate, places = alone(lengths, ids)
    apart = loss_and_gradients(model, separate, None, places, targets)
    return difference(packed[0], apart[0]), difference(packed[1], apart[1])


# Both paths of attention and every flavour, but not all pairs: each takes long to compile.
@pytest.mark.parametrize(
    ("path", "flavour"), [("written out", "gpt2"), ("written out", "modern"), ("fused", "llama")]
)
@pytest.mark.parametrize("name", MODELS)
def test_documents_in_a_row_are_as_each_alone(name, path, flavour, monkeypatch):
    model = random_model(name, small_config(flavour=flavour))
    if path == "fused":
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    of_losses, of_gradients = errors(model, LENGTHS)
    assert of_losses < 1e-5, of_losses
    assert of_gradients < 1e-5, of_gradients


def test_documents_in_a_long_row_are_as_each_alone():
    model = random_model("time_indexed_ssm", small_config())
    assert max(errors(model, LONG)) < 1e-5


@pytest.mark.parametrize("name", ["time_indexed_mlp", "time_indexed_ssm"])
def test_a_document_has_no_trace_of_another_one(name):
    """Exactly: whatever is before it and after it, the same numbers."""
    model = random_model(name, small_config(flavour="modern"))
    segments, ids = segments_of(((9, 18, 9),)), token_ids(model.config, batch=1, length=36).array
    state = jax.jit(lambda ids: final_state(model, ids, None, None, segments).array)
    before = np.asarray(state(ids))
    others = jnp.where(segments == 1, ids, (ids + 1) % model.config.vocab_size)
    after = np.asarray(state(others))
    assert np.array_equal(before[0, 9:27], after[0, 9:27])
    assert not np.any(np.all(before[0] == after[0], axis=-1)[:9])


def test_what_numbers_documents():
    segments = jnp.array([[5, 5, 2, 2, 2, 5, -1]])
    documents = documents_of(segments)
    np.testing.assert_array_equal(documents, [[0, 0, 1, 1, 1, 2, 3]])
    np.testing.assert_array_equal(positions_in(documents), [[0, 1, 0, 1, 2, 0, 0]])


def test_a_model_takes_segments_and_refuses_those_of_other_axes():
    model = random_model("standard", small_config())
    ids = token_ids(model.config, length=12)
    one = hax.zeros_like(ids)
    assert difference(model(ids, segments=one), model(ids)) < 1e-6
    with pytest.raises(ValueError, match="expected the same axes and integers"):
        model(ids, segments=one["position", 0:5])
    with pytest.raises(ValueError, match="the id of a document for every input"):
        model(ids, segments=one.astype(jnp.float32))
