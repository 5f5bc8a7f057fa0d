"""Philox4x32-10 (Salmon et al., SC 2011) on the host, in NumPy.

A multiplication of 32-bit words is one of 64-bit words here: it wraps, and holds both halves of
the product. The words of a state are kept in pairs, since an operation on a few thousand words
costs little more than its call.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["philox"]

_ROUNDS: Final = 10
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_MULTIPLIERS: Final = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_KEY_STEPS: Final = (
    np.arange(_ROUNDS, dtype=np.uint64)[:, None]
    * np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
) & _LOW

_Words = npt.NDArray[np.uint64]


def philox(
    seed: int, columns: _Words, rows: _Words, more_rows: _Words, last: int
) -> npt.NDArray[np.uint32]:
    """Return four words for each counter (column, row, more of the row, last).

    Args:
        seed: 64 bits of key.
        columns: [C], below 2^32 as all parts of a counter.
        rows: [R].
        more_rows: [R].
        last: the same in every counter.

    Returns:
        [R, C, 4].
    """
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint64)
    keys = (key + _KEY_STEPS) & _LOW
    # One round makes two words from a column alone and two from a row alone; another mixes them.
    of_column, of_row = columns * _MULTIPLIERS[0], more_rows * _MULTIPLIERS[1]
    c0, c1 = (of_row >> _HALF) ^ rows ^ keys[0, 0], of_row & _LOW
    c2, c3 = (of_column >> _HALF) ^ np.uint64(last) ^ keys[0, 1], of_column & _LOW
    of_row, of_column = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
    state, product, low = np.empty((3, 2, len(rows), len(columns)), dtype=np.uint64)
    np.bitwise_xor(c1[:, None], (of_column >> _HALF) ^ keys[1, 0], out=state[0])
    np.bitwise_xor(((of_row >> _HALF) ^ keys[1, 1])[:, None], c3, out=state[1])
    low[0], low[1] = of_column, of_row[:, None]
    # A round swaps the pairs. Instead of copies, (c0, c2) and (c1, c3) take turns with the pairs
    # the other way round; what is above the low words of `low` is left there and shifted out.
    high_keys = (keys << _HALF)[:, :, None, None]
    multipliers, swapped = _MULTIPLIERS[:, None, None], _MULTIPLIERS[::-1, None, None]
    for number in range(2, _ROUNDS):
        np.multiply(state, multipliers, out=product)
        np.left_shift(low[::-1], _HALF, out=state)
        np.bitwise_xor(product, state, out=product)
        round_keys = high_keys[number] if number % 2 else high_keys[number, ::-1]
        np.bitwise_xor(product, round_keys, out=product)
        np.right_shift(product, _HALF, out=state)
        low, product, multipliers, swapped = product, low, swapped, multipliers
    np.left_shift(low, _HALF, out=product)
    pairs = np.empty((len(rows), len(columns), 2), dtype="<u8")
    np.bitwise_or(state, product, out=pairs.transpose(2, 0, 1))
    return pairs.view("<u4")
