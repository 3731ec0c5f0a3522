"""Runs as earlier versions wrote them: plain tables, brought to the layout of today.

Version 1 had the settings of one family, of the state-space part, of adapters and of the adaptive
integrator as flat fields of the architecture (`gate`, `ssm_state_size`). Since version 2 each of them
is in the table of what it belongs to: `weights: {family: gated, gate: both}`.

Version 2 had a factor on the learning rate of each of four groups of arrays (`head_multiplier`), which
are now `groups` of the optimizer.

Version 3 had no settings of the depths of training steps but the depths themselves, version 4 one
residual stream, version 5 no runs that went on after their end, and version 6 none of answers only.

Records and checkpoints say by which version they were written; what says nothing is of version 1.
Tables stay tables here: a switch that is no longer there can still be read, and is refused when it is
to run.
"""

from collections.abc import Mapping
from typing import Any

VERSION = 7
"""Of the layout that `RunConfig.to_dict` writes."""
_CAME_LATER: dict[str, Any] = {
    "final_tokens": None,
    "start": None,
    "plugins": [],
    "depths": [],
    "least_coverage": 0.99,
    "depth_weights": [],
    "continued": [],
    "answers_only": False,
    **dict.fromkeys(("depth_jitter", "deepen_at", "taught", "speed_penalty"), 0.0),
}
_CAME_LATER_TO_ARCHITECTURE: dict[str, Any] = {
    "time_frequency": 1000.0,
    "adapter": None,
    **{"streams": 1, "stream_mix": "static", "mix_streams": "layers"},
    **dict.fromkeys(("positions", "norm_kind", "gated_mlp", "embedding_norm", "qk_norm")),
    **dict.fromkeys(("zero_outputs", "mix_embedding", "value_residual", "logit_cap")),
}
"""Fields that the first runs do not have, with what these runs did."""
_GATED = {"time_indexed_mlp", "time_indexed_ssm", "hybrid"}
"""Models whose weights are gated where nothing else is said; they were all that had settings."""
_MOVED: dict[str, dict[str, tuple[str, Any]]] = {
    "gated": {
        "gate": ("gate", "output"),
        "gate_start": ("start", "identity"),
        "gate_shift": ("shift", False),
        "gated_parts": ("parts", None),
    },
    "low_rank": {"low_rank": ("rank", 8)},
    "ssm": {
        "ssm_state_size": ("state_size", 64),
        "ssm_expand": ("expand", 2),
        "ssm_head_size": ("head_size", 64),
        "ssm_conv_width": ("conv_width", 4),
        "ssm_chunk_size": ("chunk_size", 128),
        "ssm_delta_min": ("delta_min", 1e-3),
        "ssm_delta_max": ("delta_max", 1e-1),
    },
    "adapter": {
        "adapter_rank": ("rank", 8),
        "adapter_alpha": ("alpha", 16.0),
        "adapter_maps": ("maps", ["*.*"]),
    },
    "adaptive": {
        "adaptive_rtol": ("rtol", 1e-3),
        "adaptive_atol": ("atol", 1e-4),
        "adaptive_max_steps": ("max_steps", 256),
    },
}
"""By what the fields of version 1 belong to: their names now, and what they were by default."""
_GROUPS = ("base", "time_network", "embedding", "head")
_GONE = ("shift", "parts")
"""Settings that are no longer there; they are left out where they were at their default."""


def current_run(fields: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A whole run, as a version wrote it, in the layout of today, every field of its time filled in."""
    if version >= VERSION:
        return dict(fields)
    run = _CAME_LATER | dict(fields)
    run["architecture"] = _CAME_LATER_TO_ARCHITECTURE | dict(run["architecture"])
    run["optimizer"] = {"groups": {}, "ema": 0.0, **run["optimizer"]}
    return moved_run(run)


def moved_run(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A run, or some fields of one, with those of earlier versions where they are now."""
    run = dict(fields)
    if isinstance(run.get("optimizer"), Mapping):
        run["optimizer"] = _moved_optimizer(run["optimizer"])
    if isinstance(run.get("architecture"), Mapping):
        run["architecture"] = moved_architecture(run["architecture"], run.get("model"))
    return run


def _moved_optimizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The factors of version 2 on the learning rates of four groups of arrays, as groups."""
    table = dict(fields)
    factors = {name: table.pop(f"{name}_multiplier", 1.0) for name in _GROUPS}
    groups = {name: {"rate": factor} for name, factor in factors.items() if factor != 1.0}
    return {**table, "groups": groups} if groups else table


def moved_architecture(fields: Mapping[str, Any], model: Any = None) -> dict[str, Any]:
    """The fields of an architecture, those of version 1 where they are now.

    Args:
        model: name of the model, which says what an architecture leaves open.
    """
    model = model if isinstance(model, str) else None  # anything else is refused elsewhere
    table = dict(fields)
    settings = {owner: _taken(table, moved) for owner, moved in _MOVED.items()}
    if not any(settings.values()):
        return table
    family = table.get("weights") or ("gated" if model in _GATED else None)
    if family in ("gated", "low_rank"):
        table = _put(table, "weights", "family", family, settings)
    if table.get("integrator") == "adaptive":
        table = _put(table, "integrator", "method", "adaptive", settings)
    if isinstance(method := table.get("adapter"), str):
        table = _put(table, "adapter", "method", method, {method: settings["adapter"]})
    return _with_state_space(table, model, settings["ssm"])


def _taken(table: dict[str, Any], moved: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """The settings of an owner under the names of today, taken out of the table."""
    found = {new: (table.pop(old), default) for old, (new, default) in moved.items() if old in table}
    return {
        name: value for name, (value, default) in found.items() if name not in _GONE or value != default
    }


def _put(
    table: dict[str, Any], field: str, word: str, name: str, settings: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """A table of a name and its settings; where all are at their defaults and it is open, nothing."""
    own = settings.get(name, {})
    is_open = table.get(field) is None and _are_defaults(name, own)
    return table if is_open else {**table, field: {word: name, **own} if own else name}


def _are_defaults(owner: str, settings: Mapping[str, Any]) -> bool:
    defaults = dict(_MOVED[owner].values())
    return all(defaults[name] == value for name, value in settings.items())


def _with_state_space(table: dict[str, Any], model: Any, own: dict[str, Any]) -> dict[str, Any]:
    parts = table.get("parts")
    if parts is None and model == "time_indexed_ssm" and not _are_defaults("ssm", own):
        parts = ["attention", "ssm"]
    if not isinstance(parts, list | tuple):
        return table  # nothing, or something that the config refuses
    return {**table, "parts": [{"part": p, **own} if p == "ssm" and own else p for p in parts]}
