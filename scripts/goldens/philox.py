"""The suite's random numbers in NumPy: the same values as base/philox.c, element for element.

A value depends on (seed, step, scope name, sample, element) only; base/base.h states the formula.
"""
import numpy as np

_MASK64 = (1 << 64) - 1
_LOW32 = np.uint64(0xFFFFFFFF)


def _mix(z):
    """SplitMix64's output for z."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def _fnv(text):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK64
    return value


def key(seed, step, scope):
    """vl_random_key."""
    return _mix(_mix(_mix(seed) ^ step) ^ _fnv(scope))


def blocks(key_value, sample, first_block, count):
    """Words 4*first_block .. 4*(first_block+count)-1 of a sample, as uint32."""
    index = np.uint64(first_block) + np.arange(count, dtype=np.uint64)
    c0, c1 = index & _LOW32, index >> np.uint64(32)
    c2 = np.full(count, sample & 0xFFFFFFFF, np.uint64)
    c3 = np.full(count, sample >> 32, np.uint64)
    k0, k1 = key_value & 0xFFFFFFFF, key_value >> 32
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), product1 & _LOW32,
                          (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), product0 & _LOW32)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).reshape(-1).astype(np.uint32)


def words(key_value, sample, count):
    """vl_random_word for elements 0 .. count-1 of a sample."""
    piece = 1 << 20  # bounds the temporaries
    total = (count + 3) // 4
    parts = [blocks(key_value, sample, first, min(piece, total - first)) for first in range(0, total, piece)]
    return np.concatenate(parts)[:count] if parts else np.empty(0, np.uint32)


def units(key_value, sample, count):
    """vl_random_unit of those words, as double (the values are exact in float)."""
    return (words(key_value, sample, count) >> np.uint32(8)).astype(np.float64) * 2.0**-24


def uniform(key_value, sample, count, bound):
    """(2u - 1) * bound in double, rounded once to float: how weights and inputs are drawn."""
    return ((2.0 * units(key_value, sample, count) - 1.0) * bound).astype(np.float32)


def check():
    """Published vectors of Philox 4x32-10 (Random123's known answers), so a slip here never reaches a golden."""
    zero = blocks(0, 0, 0, 1).tolist()
    assert zero == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], zero
    ones = blocks(_MASK64, _MASK64, _MASK64, 1).tolist()
    assert ones == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD], ones
