"""Evaluation batches: a whole split with every token once, or a subset that says it is one."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qkvflow.data.errors import DataError
from qkvflow.data.tokenizer import Ids

EvalBatch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]


def eval_windows(
    ids: Ids, length: int, batch_size: int, windows: int | None = None
) -> Iterator[EvalBatch]:
    """Yield (inputs, targets, mask) over a whole split, each [batch_size, length].

    Window w predicts tokens w * length + 1 ... (w + 1) * length from those before them in the
    window. Every token but the first, which nothing precedes, is a target exactly once where the
    mask is true. The last window and the last batch are filled with zeros under a false mask, so
    that every batch has the same shape. The mean loss is sum(loss * mask) / (len(ids) - 1).

    Args:
        windows: only so many of them, evenly spaced and always the same, for an evaluation during
            training; a number from these is not the loss on the split.

    Examples:
        >>> [int(mask.sum()) for *_, mask in eval_windows(np.arange(12), 4, 2)]
        [8, 3]
    """
    if len(ids) < 2:
        raise DataError(
            f"The split has {len(ids)} tokens; at least 2 are needed, one to predict another from."
        )
    if length < 1 or batch_size < 1:
        raise DataError(f"length is {length} and batch_size is {batch_size}; expected at least 1 each.")
    if windows is not None and windows < 1:
        raise DataError(f"windows is {windows}; expected at least 1.")
    total = -(-(len(ids) - 1) // length)
    count = total if windows is None else min(windows, total)
    return _batches(np.asarray(ids), np.arange(count) * total // count * length, length, batch_size)


def _batches(
    ids: Ids, starts: npt.NDArray[np.int64], length: int, batch_size: int
) -> Iterator[EvalBatch]:
    """Windows at `starts`; whatever has no target in the split is zero and masked."""
    nowhere = np.full(-len(starts) % batch_size, len(ids))
    for rows in np.append(starts, nowhere).reshape(-1, batch_size):
        places = rows[:, None] + np.arange(length)
        mask = places + 1 < len(ids)
        safe = np.where(mask, places, 0)
        inputs = np.where(mask, ids[safe], 0).astype(np.int32)
        targets = np.where(mask, ids[safe + 1], 0).astype(np.int32)
        yield inputs, targets, mask
