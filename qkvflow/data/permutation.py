"""A keyed permutation of range(n) that is computed, not stored.

A Feistel network on the grid Z_a x Z_b with a * b >= n (Black and Rogaway, 2002): x = (l, r),

    l <- l + F_i(r) mod a,    r <- r + F_i+1(l) mod b,

each step being invertible whatever F is. Values at or above n are permuted again until they fall
below it (cycle walking), which leaves a permutation of range(n). With a = ceil(sqrt n) fewer than
one in sqrt n values needs that.
"""

import hashlib
import math

import numpy as np
import numpy.typing as npt

ROUNDS = 8


def permute(
    index: npt.NDArray[np.int64], n: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
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


def round_keys(name: str) -> npt.NDArray[np.uint64]:
    """ROUNDS keys of 64 bits from a text, the same on every machine."""
    digest = hashlib.shake_256(name.encode()).digest(8 * ROUNDS)
    return np.frombuffer(digest, np.dtype("<u8")).astype(np.uint64)


def _feistel(
    x: npt.NDArray[np.uint64], a: int, b: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    rows, columns = np.uint64(a), np.uint64(b)
    left, right = x // columns, x % columns
    for i in range(0, ROUNDS, 2):
        left = (left + _mix(right + keys[i]) % rows) % rows
        right = (right + _mix(left + keys[i + 1]) % columns) % columns
    return left * columns + right


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
