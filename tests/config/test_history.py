"""Runs as earlier versions wrote them."""

import pytest

from qkvflow.config import ConfigError, Gpt2Config, RunConfig
from qkvflow.config.history import VERSION, current_run, moved_architecture, moved_run

FIRST = {
    "gate": "output",
    "gate_start": "identity",
    "gate_shift": False,
    "gated_parts": None,
    "low_rank": 8,
    "adapter": None,
    "adapter_rank": 8,
    "adapter_alpha": 16.0,
    "adapter_maps": ["*.*"],
    "ssm_state_size": 64,
    "ssm_expand": 2,
    "ssm_head_size": 64,
    "ssm_conv_width": 4,
    "ssm_chunk_size": 128,
    "ssm_delta_min": 1e-3,
    "ssm_delta_max": 1e-1,
    "adaptive_rtol": 1e-3,
    "adaptive_atol": 1e-4,
    "adaptive_max_steps": 256,
}
"""The flat fields of version 1, as they were by default."""
_OPEN = {"weights": None, "parts": None, "integrator": None}


@pytest.mark.parametrize("model", ["standard", "time_indexed_mlp", "time_indexed_ssm", "hybrid"])
def test_what_was_left_open_stays_open(model):
    moved = moved_architecture({**_OPEN, **FIRST, "hidden_dim": 64}, model)
    assert moved == {**_OPEN, "hidden_dim": 64, "adapter": None}


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        (
            "time_indexed_mlp",
            {"gate": "both"},
            {"weights": {"family": "gated", "gate": "both", "start": "identity"}},
        ),
        ("standard", {"gate": "both"}, {}),
        (
            "standard",
            {"weights": "low_rank", "low_rank": 3},
            {"weights": {"family": "low_rank", "rank": 3}},
        ),
        (
            "time_indexed_ssm",
            {"ssm_head_size": 8},
            {
                "parts": [
                    "attention",
                    {
                        "part": "ssm",
                        "state_size": 64,
                        "expand": 2,
                        "head_size": 8,
                        "conv_width": 4,
                        "chunk_size": 128,
                        "delta_min": 1e-3,
                        "delta_max": 1e-1,
                    },
                ]
            },
        ),
        (
            "standard",
            {"integrator": "adaptive", "adaptive_rtol": 1e-2},
            {"integrator": {"method": "adaptive", "rtol": 1e-2, "atol": 1e-4, "max_steps": 256}},
        ),
        (
            "standard",
            {"adapter": "lora", "adapter_rank": 2},
            {"adapter": {"method": "lora", "rank": 2, "alpha": 16.0, "maps": ["*.*"]}},
        ),
    ],
)
def test_settings_move_to_what_they_belong_to(model, fields, expected):
    moved = moved_architecture({**_OPEN, **FIRST, **fields}, model)
    assert moved == {**_OPEN, "adapter": None, **expected}
    config = Gpt2Config.from_dict(moved)
    again = config.to_dict()
    assert {name: again[name] for name in expected} == expected


def test_a_switch_that_is_gone_can_be_read_and_not_be_run():
    moved = moved_architecture({**_OPEN, **FIRST, "gate_shift": True}, "time_indexed_mlp")
    assert moved["weights"]["shift"] is True
    with pytest.raises(ConfigError, match="no setting 'shift'"):
        Gpt2Config.from_dict(moved)
    assert (
        moved_architecture({**FIRST, "gate_start": "linear"}, "hybrid")["weights"]["start"] == "linear"
    )


def test_moving_twice_is_moving_once():
    once = moved_run({"model": "hybrid", "architecture": {**_OPEN, **FIRST, "gate": "both"}})
    assert moved_run(once) == once
    assert moved_run({"model": "hybrid"}) == {"model": "hybrid"}


def test_a_run_of_the_first_version_is_filled_in_with_what_it_did():
    run = RunConfig().to_dict()
    first = {name: value for name, value in run.items() if name not in ("start", "final_tokens")}
    kept = [n for n in run["architecture"] if n not in ("time_frequency", "adapter")]
    first["architecture"] = {name: run["architecture"][name] for name in kept}
    found = current_run(first, 1)
    assert RunConfig.from_dict(found) == RunConfig()
    assert found["final_tokens"] is None and found["architecture"]["time_frequency"] == 1000.0
    assert current_run(run, VERSION) == run


def test_a_run_of_the_second_layout_is_filled_in_with_what_came_later():
    run = RunConfig().to_dict()
    before = {name: value for name, value in run.items() if name != "least_coverage"}
    assert current_run(before, 2) == run
