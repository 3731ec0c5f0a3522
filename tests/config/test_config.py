"""Configurations: every mistake at once, in sentences; round trips. Registries: each name once."""

import dataclasses
import sys

import pytest

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.registry import Registry


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_dim": 100, "num_heads": 3}, "hidden_dim 100 is not divisible by num_heads 3"),
        ({"num_layers": 0}, "num_layers is 0; expected a whole number of layers, at least 1"),
        ({"num_layers": 2.5}, "num_layers is 2.5; expected int"),
        ({"num_layers": True}, "num_layers is True; expected int"),
        ({"hidden_dim": "256"}, "hidden_dim is '256'; expected int"),
        ({"activation_function": "gleu"}, "one of 'gelu', 'relu', 'relu2', 'silu'"),
        ({"flavour": "bert"}, "flavour is 'bert'; expected one of 'gpt2', 'llama'"),
        ({"attn_pdrop": 1.0}, "attn_pdrop is 1.0; expected a probability"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3; expected a divisor"),
        ({"flavour": "llama", "hidden_dim": 12, "num_heads": 4}, "heads are 3 wide"),
        ({"parts": ("attention", "attention")}, "each only once"),
        ({"parts": ()}, "at least one part"),
        (
            {"parts": ("attention", "pool")},
            "no part of a layer 'pool'. Known: attention, conv, mlp, ssm.",
        ),
        ({"parts": "attention"}, "a list, each Part"),
        ({"weights": "gatde"}, "no weight family 'gatde'. Did you mean 'gated'?"),
        ({"weights": 3}, "3; expected a name, or a table like {family: NAME, ...}"),
        ({"weights": {"family": "gated", "gates": "both"}}, "no setting 'gates'. Did you mean 'gate'?"),
        ({"weights": {"family": "gated", "gate": "most"}}, "gate is 'most'; expected one of"),
        ({"weights": {"family": "shared", "gate": "both"}}, "no setting 'gate'. It has no settings."),
        ({"weights": {"family": "low_rank", "rank": 0}}, "rank is 0; expected a number above 0"),
        ({"integrator": {"method": "adaptive", "rtol": -1.0}}, "rtol is -1.0"),
        ({"parts": ({"part": "ssm", "head_size": 7},)}, "not divisible by its head_size 7"),
        ({"parts": ({"part": "ssm", "delta_max": 1e-4},)}, "below delta_min"),
        ({"mlp_ratio": 0.001}, "leaves the MLP without hidden units"),
        ({"norm_epsilon": float("nan")}, "norm_epsilon is nan"),
        ({"mlp_ratio": float("inf")}, "mlp_ratio is inf"),
        ({"hidden_dim": 10**400}, "expected a number above 0, below 262,144"),
        ({"hidden_dim": 10**5000}, "hidden_dim is a number of 16610 bits; expected a number above 0"),
        ({"num_layers": 10**9}, "num_layers is 1000000000; expected a whole number of layers"),
        ({"vocab_size": 10**10}, "vocab_size is 10000000000; expected a number above 0, below"),
        ({"sinusoidal_dim": 10**10}, "sinusoidal_dim is 10000000000; expected a number above 0"),
        ({"mlp_ratio": 1e308}, "mlp_ratio is 1e+308; expected a number above 0, below 128"),
        (
            {"parts": ({"part": "ssm", "conv_width": 10**7},)},
            "conv_width is 10000000; expected 1 to",
        ),
        ({"parts": ({"part": "ssm", "expand": 10**400},)}, "expected 1 to 127"),
        ({"weights": {"family": "low_rank", "rank": 10**9}}, "rank is 1000000000; expected a number"),
        ({"adapter": {"method": "lora", "rank": 10**400}}, "expected a number above 0, below 262,144"),
        ({"hiden_dim": 3}, "no field 'hiden_dim'. Did you mean 'hidden_dim'?"),
    ],
)
def test_every_mistake_is_a_sentence(fields, words):
    with pytest.raises(ConfigError) as error:
        Gpt2Config(**fields)
    assert words in str(error.value)


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigError) as error:
        Gpt2Config(num_layers=-1, vocab_size=0, attn_pdrop=2.0)
    assert len(error.value.problems) == 3
    with pytest.raises(ConfigError) as error:
        Gpt2Config(hidden_dim=100, num_heads=3, vocab_size=0, weights={"family": "gated", "gate": 1})
    assert len(error.value.problems) == 3


def test_a_preset_is_checked_as_a_whole():
    config = Gpt2Config(hidden_dim=36)
    with pytest.raises(ConfigError, match="head_size 7"):
        dataclasses.replace(config, parts=("attention", {"part": "ssm", "head_size": 7}))


def test_round_trip_through_plain_values():
    config = Gpt2Config(
        parts=("attention", "ssm"),
        weights={"family": "gated", "gate": "both"},
        integrator="adaptive",
        adapter="lora",
        mlp_ratio=2,
        num_kv_heads=2,
    )
    assert Gpt2Config.from_dict(config.to_dict()) == config
    assert config.to_dict()["parts"][0] == "attention"
    assert config.to_dict()["weights"] == {"family": "gated", "gate": "both", "start": "identity"}
    with pytest.raises(ConfigError, match="no field 'colour'"):
        Gpt2Config.from_dict({"colour": 1})


def test_axes_are_derived():
    config = Gpt2Config(hidden_dim=48, num_heads=6, num_kv_heads=2, mlp_ratio=1.5)
    assert (config.Embed.size, config.Heads.size, config.HeadSize.size) == (48, 6, 8)
    assert (config.KVHeads.size, config.Group.size, config.Mlp.size) == (2, 3, 72)
    with pytest.raises(ConfigError, match="no field 'Embed'"):
        Gpt2Config(Embed=3)


def test_a_flavour_decides_what_is_left_open():
    expected = {
        "gpt2": (True, "gelu", "learned", "layer", False, None),
        "llama": (False, "silu", "rotary", "rms", False, None),
        "modern": (False, "relu2", "rotary", "rms", True, 15.0),
    }
    names = ("activation_function", "positions", "norm_kind", "qk_norm")
    for flavour, choices in expected.items():
        config = Gpt2Config(flavour=flavour)
        assert (config.bias, *map(config.choice, names), config.cap) == choices
    changed = {"use_bias": True, "activation_function": "relu", "qk_norm": True, "logit_cap": 7.0}
    chosen = Gpt2Config(flavour="llama", **changed)
    assert {name: chosen.choice(name) for name in changed} == changed
    assert Gpt2Config(flavour="modern", logit_cap="none").cap is None


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan"), float("inf"), "some"])
def test_a_cap_of_logits_is_a_number_above_zero(cap):
    with pytest.raises(ConfigError, match="logit_cap is"):
        Gpt2Config(logit_cap=cap)


def test_a_config_is_frozen_and_hashable():
    config = Gpt2Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 3
    assert hash(config) == hash(Gpt2Config())


@pytest.fixture
def shapes():
    shapes = Registry("shape")
    shapes.register("square")(4)
    shapes.register("circle")(0)
    return shapes


def test_it_is_a_mapping_in_the_order_of_registration(shapes):
    assert dict(shapes) == {"square": 4, "circle": 0}
    assert shapes.get("square") == 4
    assert shapes.get("line", "none") == "none"
    assert "line" not in shapes


def test_a_name_that_is_not_there_is_a_sentence(shapes):
    with pytest.raises(ConfigError) as error:
        shapes["circl"]
    words = (
        "The shape is not known:\n  - there is no shape 'circl'. Did you mean 'circle'? Known: circle,"
    )
    assert str(error.value).startswith(words)
    assert "--plugin FILE" in str(error.value)


def test_a_name_is_taken_once(shapes):
    with pytest.raises(ConfigError, match="there is a shape 'circle' already"):
        shapes.register("circle")(1)
    assert shapes["circle"] == 0


def test_the_package_s_own_are_imported_when_they_are_asked_for(tmp_path, monkeypatch):
    lines = ["from registry_of_test import LAZY", "LAZY.register('own')(1)"]
    (tmp_path / "variants_of_test.py").write_text("\n".join(lines))
    (tmp_path / "registry_of_test.py").write_text(
        "from qkvflow.config.registry import Registry\nLAZY = Registry('thing', 'variants_of_test')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from registry_of_test import LAZY

    assert "variants_of_test" not in sys.modules
    LAZY.register("other")(2)
    assert dict(LAZY) == {"own": 1, "other": 2}
