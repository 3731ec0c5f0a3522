"""Runs as earlier versions wrote them: plain tables, brought to the layout of today.

A record, a checkpoint and a plan say by which version of this layout they were written; what says
nothing is of version 1. Tables stay tables here: a switch that is no longer there can still be read.
"""

from collections.abc import Mapping
from typing import Any

VERSION = 1
"""Of the layout that `RunConfig.to_dict` writes."""
_CAME_LATER: dict[str, Any] = {"final_tokens": None, "start": None}
_CAME_LATER_TO_ARCHITECTURE: dict[str, Any] = {
    "time_frequency": 1000.0,
    "gate_shift": False,
    "adapter": None,
    "adapter_rank": 8,
    "adapter_alpha": 16.0,
    "adapter_maps": ["*.*"],
}
"""Fields that the first runs do not have, with what these runs did."""


def current_run(fields: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A whole run, as a version wrote it, in the layout of today."""
    run = dict(fields)
    if version == 1:
        run = _CAME_LATER | run
        run["architecture"] = _CAME_LATER_TO_ARCHITECTURE | dict(run["architecture"])
    return run
