"""Pairs of arms that a plan is about; a side of a pair may be an arm at a depth, ARM@DEPTH."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkvflow.config import nearest

Pair = tuple[str, str]
"""Names of two arms; ARM@DEPTH is an arm at one of the depths that the plan names."""


def arm_of(name: str) -> str:
    """The arm that one side of a contrast is.

    Examples:
        >>> arm_of("elastic"), arm_of("elastic@8")
        ('elastic', 'elastic')
    """
    return name.partition("@")[0]


def at_depth_name(arm: str, depth: int) -> str:
    """An arm at a depth, as contrasts name it."""
    return f"{arm}@{depth}"


def read_contrasts(given: Any, problems: list[str]) -> tuple[Pair, ...] | None:
    """The contrasts that a plan's table names; what is no pair is added to the problems."""
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(p, list) and len(p) == 2 for p in given):
        problems.append(f"contrasts is {given!r}; expected a list of pairs, [[ARM, ARM], ...].")
        return None
    return tuple((str(first), str(second)) for first, second in given)


def contrast_problems(
    contrasts: Sequence[Pair], texts: Mapping[str, str], depths: Sequence[int]
) -> list[str]:
    """What cannot be compared; `texts` are those of the arms by name, `depths` those of the plan."""
    problems = []
    for pair in contrasts:
        problems += [_unknown_side(name, texts, depths) for name in pair]
        if len({texts[arm_of(name)] for name in pair if arm_of(name) in texts}) > 1:
            problems.append(f"contrasts: {' and '.join(pair)} read different texts.")
    pairs = {frozenset(pair) for pair in contrasts}
    if len(pairs) < len(contrasts) or any(len(pair) < 2 for pair in pairs):
        problems.append("contrasts: expected different pairs of different arms.")
    return [problem for problem in problems if problem]


def _unknown_side(name: str, texts: Mapping[str, str], depths: Sequence[int]) -> str:
    """Why one side of a contrast is nothing that runs are judged by; empty where it is."""
    arm = arm_of(name)
    if arm not in texts:
        return f"contrasts: there is no arm {arm!r}. {nearest(arm, texts)}"
    if name not in (arm, *(at_depth_name(arm, depth) for depth in depths)):
        known = ", ".join(map(str, depths)) or "none"
        return f"contrasts: {name} is an arm at a depth, and the plan's depths are: {known}."
    return ""
