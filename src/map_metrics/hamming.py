"""Hamming distances of packed codes: per query, how many gallery items (and how many relevant ones) at each distance.

Two histograms over bits + 1 distances are all that average precision needs of a query: no sort, no queries x gallery
matrix, and histograms of parts of a gallery add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK = 1 << 15  # codes at a time: they stay in the cache, and torch starts no threads of its own

Words = npt.NDArray[np.uint64]  # (words, n): one row per 64-bit word, so that each is contiguous


def pack_bits(bits: Tensor) -> Tensor:
    """(n, b) bool -> (n, ceil(b / 64)) int64, zero padded."""
    return pack_bytes(torch.from_numpy(np.packbits(bits.cpu().numpy(), axis=1, bitorder="little")))


def pack_bytes(data: Tensor) -> Tensor:
    """(n, b) uint8 -> (n, ceil(b / 8)) int64, zero padded."""
    n, width = data.shape
    padded = torch.zeros((n, -(-width // 8) * 8), dtype=torch.uint8)
    padded[:, :width] = data.cpu()
    return padded.view(torch.int64)


def as_words(rows: Tensor) -> Words:
    """(n, w) int64 -> (w, n) words."""
    return np.ascontiguousarray(rows.numpy().T).view(np.uint64)


def _dtype_of(bits: int) -> type[np.integer]:
    """The narrowest dtype that holds distances of up to ``bits`` and that torch counts."""
    return np.uint8 if bits < 2**8 else np.int16 if bits < 2**15 else np.int32


def code_distances(query: Words, gallery: Words, bits: int) -> npt.NDArray[np.integer]:
    """Distances (n,) of one code (w,) to a gallery (w, n), in the narrowest dtype that holds ``bits``."""
    total: npt.NDArray[np.integer] = np.bitwise_count(gallery[0] ^ query[0]).astype(_dtype_of(bits), copy=False)
    for word, code in zip(gallery[1:], query[1:], strict=True):
        total += np.bitwise_count(word ^ code)
    return total


class _Histogram:
    """Histogram of one query at a time against a fixed gallery; the buffers are reused."""

    def __init__(self, gallery: Words, bits: int) -> None:
        n = gallery.shape[1]
        self.blocks = [gallery[:, at : at + _BLOCK] for at in range(0, n, _BLOCK)]
        self.bits = bits
        self.xor = np.empty(min(n, _BLOCK), np.uint64)
        self.count = np.empty(min(n, _BLOCK), np.uint8)
        self.distance = self.count if gallery.shape[0] == 1 else np.empty(len(self.count), _dtype_of(bits))

    def add(self, query: Words, histogram: npt.NDArray[np.int64]) -> None:
        for block in self.blocks:
            n = block.shape[1]
            xor, count, distance = self.xor[:n], self.count[:n], self.distance[:n]
            for i, (word, code) in enumerate(zip(block, query, strict=True)):
                np.bitwise_xor(word, code, out=xor)
                np.bitwise_count(xor, out=count)
                if distance is not count:
                    np.add(distance, count, out=distance) if i else np.copyto(distance, count)
            histogram += torch.bincount(torch.from_numpy(distance), minlength=self.bits + 1).numpy()


class Part(NamedTuple):
    """A part of the gallery that some queries are counted against.

    Attributes:
        queries: indices of those queries.
        codes: the part's words.
    """

    queries: Tensor
    codes: Words


def histograms(queries: Words, parts: Iterator[Part], bits: int) -> Tensor:
    """(Q, bits + 1) int64: for each query, the items of its parts at each distance; parts of one query add up."""
    total = np.zeros((queries.shape[1], bits + 1), np.int64)  # torch's inference mode ends at the thread

    def count(part: Part) -> None:
        counter = _Histogram(part.codes, bits)
        for row in part.queries.tolist():
            counter.add(queries[:, row], total[row])

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:  # NumPy and torch release the interpreter lock
        for part in parts:
            if part.codes.shape[1]:  # one part at a time: only one copy of a part's codes is held
                slices = part.queries.tensor_split(min(threads, max(len(part.queries), 1)))
                list(pool.map(count, [part._replace(queries=rows) for rows in slices]))
    return torch.from_numpy(total)
