"""Training batches as a pure function of (digest, seed, step).

Windows are numbered through the whole of training: batch `step` holds the windows
g = step * batch_size ... of epoch e = g // n, place g mod n, with n windows an epoch. In each
epoch another keyed permutation says which window of the grid stands at which place, and the
grid begins at another offset. Nothing is remembered between calls, so any step is reached at
once and a resumed run reads what the uninterrupted one would have read.

The permutation of range(n) is computed, not stored: a Feistel network on the grid Z_a x Z_b with
a * b >= n (Black and Rogaway, 2002): x = (l, r),

    l <- l + F_i(r) mod a,    r <- r + F_i+1(l) mod b,

each step being invertible whatever F is. Values at or above n are permuted again until they fall
below it (cycle walking), which leaves a permutation of range(n). With a = ceil(sqrt n) fewer than
one in sqrt n values needs that.
"""

import hashlib
import math

import numpy as np
import numpy.typing as npt

from qkvflow.data.errors import DataError
from qkvflow.data.tokenizer import Ids

Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
Bits = npt.NDArray[np.uint64]
ROUNDS = 8


def batch_at(ids: Ids, *, digest: str, seed: int, step: int, batch_size: int, length: int) -> Batch:
    """Batch number `step`: inputs and targets, int32 [batch_size, length], targets one ahead.

    The sequence of windows does not depend on `batch_size`: two batches of 4 are one of 8.

    Args:
        ids: the tokens of the train split.
        digest: of the corpus, so that another text is read in another order.
        seed: of the run.
        step: any number from 0 on.

    Examples:
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


def never_targets(tokens: int, length: int) -> int:
    """How many tokens at the end of a split no window ever has as a target, at any offset.

    The token at place 0, which nothing precedes, is not counted.

    >>> never_targets(tokens=300, length=100)
    100
    """
    n = windows_per_epoch(tokens, length)
    return tokens - 1 - (n * length + _largest_offset(tokens - 1 - n * length, length))


def _largest_offset(room: int, length: int) -> int:
    return min(room, length - 1)


def _offset(key: str, room: int, length: int) -> int:
    """The beginning of the grid, uniform over the `room` there is, at most one window."""
    bits = int.from_bytes(hashlib.sha256(f"offset|{key}".encode()).digest()[:8])
    return bits % (_largest_offset(room, length) + 1)


def permute(index: npt.NDArray[np.int64], n: int, keys: Bits) -> npt.NDArray[np.int64]:
    """Where each index of range(n) goes under the permutation with these round keys.

    >>> sorted(permute(np.arange(5), 5, round_keys("a key")).tolist())
    [0, 1, 2, 3, 4]
    """
    a = math.isqrt(n - 1) + 1 if n > 1 else 1
    b = -(-n // a)
    out = _feistel(index.astype(np.uint64), a, b, keys)
    while (outside := out >= n).any():
        out[outside] = _feistel(out[outside], a, b, keys)
    return out.astype(np.int64)


def round_keys(name: str) -> Bits:
    """ROUNDS keys of 64 bits from a text, the same on every machine."""
    digest = hashlib.shake_256(name.encode()).digest(8 * ROUNDS)
    return np.frombuffer(digest, np.dtype("<u8")).astype(np.uint64)


def _feistel(x: Bits, a: int, b: int, keys: Bits) -> Bits:
    rows, columns = np.uint64(a), np.uint64(b)
    left, right = x // columns, x % columns
    for i in range(0, ROUNDS, 2):
        left = (left + _mix(right + keys[i]) % rows) % rows
        right = (right + _mix(left + keys[i + 1]) % columns) % columns
    return left * columns + right


def _mix(x: Bits) -> Bits:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
