"""Training batches as a pure function of (digest, seed, step).

Windows are numbered through the whole of training: batch `step` holds the windows
g = step * batch_size ... of epoch e = g // n, place g mod n, with n windows an epoch. In each
epoch another keyed permutation says which window of the grid stands at which place, and the
grid begins at another offset. Nothing is remembered between calls, so any step is reached at
once and a resumed run reads what the uninterrupted one would have read.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from qkvflow.data.errors import DataError
from qkvflow.data.permutation import permute, round_keys
from qkvflow.data.tokenizer import Ids

Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


def batch_at(ids: Ids, *, digest: str, seed: int, step: int, batch_size: int, length: int) -> Batch:
    """Batch number `step`: inputs and targets, int32 [batch_size, length], targets one ahead.

    The sequence of windows does not depend on `batch_size`: two batches of 4 are one of 8.

    Args:
        ids: the tokens of the train split.
        digest: of the corpus, so that another text is read in another order.
        seed: of the run.
        step: any number from 0 on.

    Example:
        >>> inputs, targets = batch_at(
        ...     np.arange(100), digest="", seed=0, step=7, batch_size=2, length=8
        ... )
        >>> bool((targets == inputs + 1).all())
        True
    """
    if step < 0 or batch_size < 1:
        raise DataError(
            f"step is {step} and batch_size is {batch_size}; expected step >= 0, batch_size >= 1."
        )
    starts = window_starts(
        len(ids), digest=digest, seed=seed, first=step * batch_size, count=batch_size, length=length
    )
    # A plain array: indexing through the memmap class costs more than the read itself.
    block = np.asarray(ids)[starts[:, None] + np.arange(length + 1)].astype(np.int32)
    return block[:, :-1].copy(), block[:, 1:].copy()


def window_starts(
    tokens: int, *, digest: str, seed: int, first: int, count: int, length: int
) -> npt.NDArray[np.int64]:
    """Where windows number `first` to `first + count - 1` of a run begin."""
    n = windows_per_epoch(tokens, length)
    number = first + np.arange(count, dtype=np.int64)
    epochs, places = np.divmod(number, n)
    starts = np.empty(count, dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        key = f"{digest}|{seed}|{length}|{epoch}"
        offset = _offset(key, tokens - 1 - n * length, length)
        starts[here] = offset + length * permute(places[here], n, round_keys(key))
    return starts


def windows_per_epoch(tokens: int, length: int) -> int:
    """How many windows an epoch holds: one fewer than fit, so that the grid has room to move.

    A window spans length + 1 tokens and shares the last with the next one, as its first target.

    Raises:
        DataError: the split is shorter than one window.
    """
    if length < 1:
        raise DataError(f"length is {length}; expected at least 1 token.")
    fit = (tokens - 1) // length
    if fit < 1:
        raise DataError(
            f"The split has {tokens} tokens, and one window of length {length} needs "
            f"{length + 1}. Give a longer text, or a shorter length."
        )
    return max(fit - 1, 1)


def _offset(key: str, room: int, length: int) -> int:
    """The beginning of the grid, uniform over the `room` there is, at most one window."""
    bits = int.from_bytes(hashlib.sha256(f"offset|{key}".encode()).digest()[:8])
    return bits % (min(room, length - 1) + 1)
