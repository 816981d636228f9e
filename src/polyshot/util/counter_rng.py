"""Random numbers as a pure function of counters: no state, the same on CPU and GPU.

A generator's stream depends on everything drawn before, and differs between devices. Here each
number is a hash of (key, row, column) by wrapping integer arithmetic alone, so any part of any
stream can be made anywhere. Rows go through the 64-bit finaliser of splitmix64 (Steele et al. 2014)
and columns through two 32-bit rounds of the same kind, which is faster.
"""

import hashlib

import torch
from torch import Tensor


def _signed(value: int, width: int) -> int:
    """Write a constant as the signed integer that torch stores."""
    return value - (1 << width) if value >> (width - 1) else value


_STEP64 = _signed(0x9E3779B97F4A7C15, 64)
_MIX64, _MIX64B = _signed(0xBF58476D1CE4E5B9, 64), _signed(0x94D049BB133111EB, 64)
_STEP32, _MIX32, _MIX32B = (_signed(c, 32) for c in (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35))


def key(*parts: object) -> int:
    """Derive a 63-bit key from anything with a stable ``repr``."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1


def bits(key: int, rows: Tensor, columns: int) -> Tensor:
    """Hash each (row, column) to a random int32, of which the high bits are the good ones.

    The key names the stream; rows int64 ``[R]`` -> ``[columns, R]``. A row's numbers do not depend
    on how many columns are asked for.
    """
    state = rows * _STEP64 + key
    state ^= state >> 30
    state *= _MIX64
    state ^= state >> 27
    state *= _MIX64B
    low, high = state.view(torch.int32).view(-1, 2).T.contiguous()
    steps = torch.arange(columns, dtype=torch.int32, device=rows.device)[:, None] * _STEP32
    hashed: Tensor = steps + low
    # torch's shifts copy the sign, splitmix's fill with zeros: of 64 bits one is lost.
    scratch = torch.empty_like(hashed)  # fresh memory for each result costs more than the result
    hashed ^= torch.bitwise_right_shift(hashed, 16, out=scratch)
    hashed *= _MIX32
    hashed ^= high
    hashed ^= torch.bitwise_right_shift(hashed, 15, out=scratch)
    hashed *= _MIX32B
    return hashed


def uniform(key: int, rows: Tensor, columns: int) -> Tensor:
    """Random float32 in ``[0, 1)``, ``[columns, R]``: multiples of 2^-24, exact on every device."""
    signed = bits(key, rows, columns).bitwise_right_shift_(8)  # 24 bits, of which one is the sign
    return signed.to(torch.float32).mul_(2.0**-24).add_(0.5)
