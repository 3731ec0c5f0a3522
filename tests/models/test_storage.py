"""Saving and loading: every model, any depth, damaged files, no surprise."""

import json

import numpy as np
import pytest

import qkvflow
from qkvflow.files import FileError, read_sealed, write_sealed
from qkvflow.models import MODELS, NeuralODELM, unroll
from qkvflow.models.paths import arrays_of
from qkvflow.models.storage import FORMAT, write_arrays
from tests.support import FLAVOURS, difference, random_model, small_config, token_ids


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_comes_back_bit_for_bit(tmp_path, name, flavour):
    model = random_model(name, small_config(flavour=flavour, tie_embeddings=flavour == "llama"))
    model.save(tmp_path / "model")
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"model.safetensors", "config.json"}
    back = qkvflow.load(tmp_path / "model")
    assert type(back) is type(model)
    assert back.config == model.config
    assert list(arrays_of(back)) == list(arrays_of(model))
    assert difference(arrays_of(back), arrays_of(model)) == 0.0


def test_export_at_another_depth(tmp_path):
    """Unroll and save: the file is an ordinary model that computes what the unrolled one does."""
    config = small_config()
    unrolled = unroll(random_model("time_indexed_mlp", config), 5)
    unrolled.save(tmp_path / "five")
    back = qkvflow.load(tmp_path / "five")
    assert back.config.num_layers == 5
    assert back.config.weights.name == "per_layer"
    ids = token_ids(config)
    assert difference(back(ids).array, unrolled(ids).array) == 0.0


@pytest.fixture
def saved(tmp_path):
    model = random_model("time_indexed_mlp", small_config())
    model.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_model_is_never_written_over_another(saved):
    with pytest.raises(FileError, match="already exists"):
        qkvflow.load(saved).save(saved)
    assert isinstance(qkvflow.load(saved), NeuralODELM)


def test_a_changed_byte_in_the_arrays_is_noticed(saved):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"model.safetensors was changed or cut short"):
        qkvflow.load(saved)


def test_a_changed_config_is_noticed(saved):
    path = saved / "config.json"
    path.write_text(path.read_text().replace('"num_layers": 2', '"num_layers": 3'))
    with pytest.raises(FileError, match=r"config.json was changed after it was written"):
        qkvflow.load(saved)


def test_a_newer_format_is_named(saved):
    path = saved / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    with pytest.raises(FileError, match="a newer qkvflow wrote it"):
        qkvflow.load(saved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a * np.nan, "not finite, in transformer.wte.weight: its training failed"),
        (lambda a: a.astype(np.float16), r"transformer.wte.weight is \(13, 16\) of float16 there"),
        (lambda a: a[:-1], r"transformer.wte.weight is \(12, 16\) there"),
    ],
)
def test_weights_that_are_none_are_named_though_their_digest_is_right(saved, change, words):
    arrays = {path: np.asarray(array) for path, array in arrays_of(qkvflow.load(saved)).items()}
    arrays["transformer.wte.weight"] = change(arrays["transformer.wte.weight"])
    digest = write_arrays(saved / "model.safetensors", arrays)
    content = read_sealed(saved / "config.json", "model", FORMAT)
    facts = {name: value for name, value in content.items() if name not in ("kind", "format")}
    facts["files"] = {"model.safetensors": digest}
    write_sealed(saved / "config.json", "model", FORMAT, facts)
    with pytest.raises(FileError, match=words):
        qkvflow.load(saved)


def test_a_place_without_a_model(tmp_path):
    with pytest.raises(FileError, match="is not there: expected a directory with config.json"):
        qkvflow.load(tmp_path / "nothing")
    with pytest.raises(FileError, match="holds no model"):
        qkvflow.load(tmp_path)


def test_a_place_that_cannot_be_written(saved):
    with pytest.raises(FileError, match="could not be written to .*: (Not a directory|File exists)"):
        qkvflow.load(saved).save(saved / "config.json" / "below")
