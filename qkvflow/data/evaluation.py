"""Evaluation batches: a whole split with every token once, or a subset that says it is one."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qkvflow.data.errors import DataError
from qkvflow.data.tokenizer import Ids

EvalBatch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]


def eval_windows(ids: Ids, length: int, batch_size: int) -> Iterator[EvalBatch]:
    """Yield (inputs, targets, mask) over a whole split, each [batch_size, length].

    Window w predicts tokens w * length + 1 ... (w + 1) * length from those before them in the
    window. Every token but the first, which nothing precedes, is a target exactly once where the
    mask is true. The last window and the last batch are filled with zeros under a false mask, so
    that every batch has the same shape. The mean loss is sum(loss * mask) / (len(ids) - 1).

        >>> [int(mask.sum()) for *_, mask in eval_windows(np.arange(12), 4, 2)]
        [8, 3]
    """
    _check(len(ids), length, batch_size)
    windows = np.arange(-(-(len(ids) - 1) // length))
    return _batches(ids, windows, length, batch_size)


def eval_windows_subset(ids: Ids, length: int, batch_size: int, windows: int) -> Iterator[EvalBatch]:
    """Like `eval_windows`, but only `windows` of them, evenly spaced and always the same.

    For a quick look during training; a number from here is not the loss on the split.
    """
    _check(len(ids), length, batch_size)
    if windows < 1:
        raise DataError(f"windows is {windows}; expected at least 1.")
    total = -(-(len(ids) - 1) // length)
    chosen = np.arange(min(windows, total)) * total // min(windows, total)
    return _batches(ids, chosen, length, batch_size)


def _batches(
    ids: Ids, windows: npt.NDArray[np.int64], length: int, batch_size: int
) -> Iterator[EvalBatch]:
    ids = np.asarray(ids)
    for first in range(0, len(windows), batch_size):
        starts = np.full(batch_size, len(ids), dtype=np.int64)
        chosen = windows[first : first + batch_size]
        starts[: len(chosen)] = chosen * length
        yield _cut(ids, starts, length)


def _cut(ids: Ids, starts: npt.NDArray[np.int64], length: int) -> EvalBatch:
    """Windows at `starts`; whatever has no target in the split is zero and masked."""
    places = starts[:, None] + np.arange(length)
    mask = places + 1 < len(ids)
    safe = np.where(mask, places, 0)
    inputs = np.where(mask, ids[safe], 0).astype(np.int32)
    targets = np.where(mask, ids[safe + 1], 0).astype(np.int32)
    return inputs, targets, mask


def _check(tokens: int, length: int, batch_size: int) -> None:
    if tokens < 2:
        raise DataError(
            f"The split has {tokens} tokens; at least 2 are needed, one to predict another from."
        )
    if length < 1 or batch_size < 1:
        raise DataError(f"length is {length} and batch_size is {batch_size}; expected at least 1 each.")
