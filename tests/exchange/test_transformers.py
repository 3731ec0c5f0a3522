"""Models as transformers has them: the same logits after save and reload, or the reason why not."""

import json

import jax
import numpy as np
import pytest
import yaml

import qkvflow
from qkvflow.cli.main import main
from qkvflow.config import ConfigError
from qkvflow.data import BPETokenizer, ByteTokenizer, CharTokenizer
from qkvflow.exchange import write_transformers
from qkvflow.files import FileError
from qkvflow.models import unroll
from qkvflow.models.transformers_form import transformers_form
from tests.support import WEIGHTS, difference, random_model, small_config, token_ids
from tests.train.support import trained_base

TEXT = "Kurven über der Tiefe, \U0001f600 and\tweights; 12 layers\n"


@pytest.fixture(autouse=True)
def _as_usual(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few steps, of time_indexed_mlp over characters."""
    return trained_base(tmp_path_factory.mktemp("base"))


def theirs(directory):
    """The model that transformers reads: every tensor found, none left over."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(found.values()), found
    return model.eval()


def check_logits(model, directory):
    """The same logits, also after transformers has saved it and read it again."""
    import torch

    ids = token_ids(model.config, length=min(9, model.config.max_position_embeddings))
    expected = np.asarray(model(ids).array)
    loaded = theirs(directory)
    loaded.save_pretrained(directory / "again")
    for peer in (loaded, theirs(directory / "again")):
        with torch.inference_mode():
            found = peer(torch.tensor(np.asarray(ids.array), dtype=torch.long)).logits.numpy()
        error = difference(found, expected)
        assert error < 1e-4, f"{error}, of logits up to {np.abs(expected).max()}"
    return loaded


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flavour", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "changes",
    [
        *({"weights": weights, "num_layers": 3} for weights in WEIGHTS),
        {"tie_embeddings": True},
        {"num_kv_heads": 1},
        {"num_kv_heads": 4},
        {"use_bias": True, "activation_function": "gelu"},
        {"use_bias": False, "activation_function": "relu2"},
        {"adapter": {"method": "lora", "rank": 2}},
        {"mlp_ratio": 1.7, "norm_epsilon": 1e-3, "rotary_base": 500.0},
    ],
    ids=str,
)
def test_logits_are_those_of_transformers(tmp_path, flavour, changes):
    model = random_model("standard", small_config(flavour=flavour, **changes))
    kind = write_transformers(model, tmp_path / "out")
    assert kind == {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[flavour]
    assert type(check_logits(model, tmp_path / "out")).__name__ == kind


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("depth", [1, 5])
def test_at_another_depth_with_steps_of_one(tmp_path, depth):
    model = unroll(random_model("time_indexed_mlp", small_config()), depth, unit_steps=True)
    write_transformers(model, tmp_path / "out")
    check_logits(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("tong_neuralode", {}, ["its order is parallel", "2 layers have steps of 0.5"]),
        ("hybrid", {}, ["steps of 0.5; expected steps of 1, since the MLP sees x"]),
        ("time_indexed_ssm", {}, ["its parts are attention, ssm; expected attention, mlp"]),
        ("standard", {"parts": ("mlp", "attention")}, ["its parts are mlp, attention"]),
        ("standard", {"integrator": "heun"}, ["heun evaluates a layer 2 times"]),
        ("standard", {"integrator": "adaptive"}, ["no grid over depth"]),
        (
            "standard",
            {"flavour": "modern"},
            ["embedding_norm", "qk_norm", "mix_embedding", "value_residual", "logit_cap"],
        ),
        ("standard", {"flavour": "llama", "logit_cap": 30.0}, ["capped at 30 (logit_cap)"]),
        ("standard", {"positions": "rotary"}, ["(rotary, layer, not gated); expected (learned, layer"]),
        ("standard", {"flavour": "llama", "gated_mlp": False}, ["(rotary, rms, not gated)"]),
    ],
)
def test_what_is_neither_is_refused_with_every_reason(tmp_path, name, changes, words):
    model = random_model(name, small_config(**changes))
    with pytest.raises(ConfigError) as refused:
        write_transformers(model, tmp_path / "out")
    assert not [word for word in words if word not in str(refused.value)], refused.value
    assert not (tmp_path / "out").exists()


def test_a_finer_grid_is_refused_and_the_option_that_changes_it_named():
    model = random_model("time_indexed_mlp", small_config())
    with pytest.raises(ConfigError, match=r"4 layers have steps of 0.5; .* With --unit-steps"):
        transformers_form(unroll(model, 4))


def test_a_directory_that_is_there_and_a_vocabulary_that_is_larger_are_refused(tmp_path):
    model = random_model("standard", small_config())
    with pytest.raises(FileError, match="already exists"):
        write_transformers(model, tmp_path)
    with pytest.raises(ConfigError, match="it has 256 ids, the model 13"):
        write_transformers(model, tmp_path / "out", ByteTokenizer())


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(),
        CharTokenizer.fit([TEXT]),
        CharTokenizer.fit([TEXT + "\N{REPLACEMENT CHARACTER}"]),
        BPETokenizer.fit([TEXT * 9], 300),
    ],
    ids=lambda tokenizer: f"{tokenizer.kind} of {tokenizer.vocab_size}",
)
def test_tokenizers_have_the_same_ids_and_texts(tmp_path, tokenizer):
    from transformers import AutoTokenizer

    model = random_model("standard", small_config(vocab_size=tokenizer.vocab_size))
    write_transformers(model, tmp_path / "out", tokenizer)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in (TEXT, "  two  spaces , and .", "unknown: \u4e2d", TEXT * 3):
        ids = tokenizer.encode(text)
        assert loaded(text)["input_ids"] == ids.tolist()
        if tokenizer.lost_bytes(text, ids) == 0:
            assert loaded.decode(ids) == text


def test_the_end_of_a_text_is_what_the_tokenizer_calls_it(tmp_path):
    content = json.loads(BPETokenizer.fit([TEXT * 9], 280).json_text)
    content["model"]["vocab"]["<|endoftext|>"] = 280
    tokenizer = BPETokenizer.parse(json.dumps(content), "a test")
    model = random_model("standard", small_config(vocab_size=281))
    write_transformers(model, tmp_path / "out", tokenizer)
    for file in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / file).read_text())["eos_token_id"] == 280
    assert ByteTokenizer().end_of_text is None


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_a_run_becomes_a_directory_that_transformers_generates_from(run, tmp_path, capsys):
    out = tmp_path / "out"
    given = ["--checkpoint", str(run), "--format", "transformers", "--out", str(out)]
    assert main(["export", *given]) == 0
    assert "holds a GPT2LMHeadModel for transformers, with 2 layers" in capsys.readouterr().out
    check_logits(qkvflow.load(run), out)
    from transformers import pipeline

    said = pipeline("text-generation", model=str(out))("we", max_new_tokens=3, do_sample=False)
    options = ["--prompt", "we", "--tokens", "3", "--temperature", "0"]
    assert main(["generate", "--checkpoint", str(run), *options]) == 0
    assert said[0]["generated_text"] == capsys.readouterr().out.rstrip("\n")


def test_the_card_says_what_the_model_is_and_leaves_the_licence_open(run, tmp_path):
    given = ["--checkpoint", str(run), "--depth", "3", "--unit-steps"]
    for kind in ("transformers", "qkvflow"):
        out = tmp_path / kind
        assert main(["export", *given, "--format", kind, "--out", str(out)]) == 0
        _, head, text = (out / "README.md").read_text().split("---\n", 2)
        about = yaml.safe_load(head)
        assert (about["license"], about["library_name"]) == ("unknown", kind)
        assert "to be filled in" in head
        assert "time_indexed_mlp: weights gated" in text
        assert "| depth | 3 layers, sampled from a model of 2 |" in text
        assert "text.txt, 12 steps of 4 x 8 tokens (384)" in text
        losses = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        final = next(record for record in losses if record["kind"] == "final")
        said = f"{final['loss']:.4f} nats per token on the whole valid split, at its own depth of 2"
        assert said in text
        assert f'"{kind}"' in text  # how it is loaded
    assert qkvflow.load(tmp_path / "qkvflow").config.num_layers == 3


def test_the_card_of_a_checkpoint_has_its_own_loss_and_that_of_an_export_has_none(run, tmp_path):
    from qkvflow.exchange.card import recorded_loss

    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    valid = [r for r in records if r["kind"] == "valid" and r["step"] <= 9]
    step = run / "checkpoints" / "step-00000009"
    assert recorded_loss(step)["loss"] == valid[-1]["loss"]
    assert main(["export", "--checkpoint", str(run), "--out", str(tmp_path / "one")]) == 0
    assert recorded_loss(tmp_path / "one") is None
    again = ["--checkpoint", str(tmp_path / "one"), "--out", str(tmp_path / "two")]
    assert main(["export", *again]) == 0
    assert "not recorded: the model was imported" in (tmp_path / "two" / "README.md").read_text()
