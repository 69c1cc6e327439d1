"""Hamming distances of packed codes: per query, how many gallery items (and how many relevant ones) at each distance.

Two histograms over bits + 1 distances are all that average precision needs of a query: no sort, no queries x gallery
matrix, and histograms of parts of a gallery add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK = 1 << 16  # codes at a time: they stay in the cache

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


class _Counter:
    """Distances of a fixed gallery to some queries, counted; the buffers are reused.

    Each NumPy or torch call works on about ``_BLOCK`` codes: much shorter ones make the threads queue for the
    interpreter lock, which costs more than the counting.
    """

    def __init__(self, gallery: Words, bits: int) -> None:
        n = gallery.shape[1]
        self.gallery, self.bits = gallery, bits
        self.together = max(_BLOCK // max(n, bits + 1), 1)  # so many queries at a time where the gallery is short
        self.blocks = np.linspace(0, n, -(-n // _BLOCK) + 1).astype(np.int64).tolist()
        width = max(stop - start for start, stop in pairwise(self.blocks))
        self.xor = np.empty((self.together, width), np.uint64)
        self.count = np.empty((self.together, width), np.uint8)
        self.distance = np.empty((self.together, n), _dtype_of(bits))
        self.first_cell = (np.arange(self.together) * (bits + 1)).astype(_dtype_of(self.together * (bits + 1)))[:, None]
        self.cell = np.empty(self.distance.shape, self.first_cell.dtype)

    def __call__(self, queries: Words) -> npt.NDArray[np.int64]:
        """(q, bits + 1) counts of queries (w, q), at most ``together`` of them."""
        q = queries.shape[1]
        distance = self.distance[:q]
        for start, stop in pairwise(self.blocks):
            xor, count, part = self.xor[:q, : stop - start], self.count[:q, : stop - start], distance[:, start:stop]
            for i, (word, code) in enumerate(zip(self.gallery[:, start:stop], queries, strict=True)):
                np.bitwise_xor(word, code[:, None], out=xor)
                if i == 0:
                    np.bitwise_count(xor, out=part)
                else:
                    np.add(part, np.bitwise_count(xor, out=count), out=part)
        cell = distance if q == 1 else np.add(distance, self.first_cell[:q], out=self.cell[:q])
        counts = torch.bincount(torch.from_numpy(cell.reshape(-1)), minlength=q * (self.bits + 1))
        return counts.view(q, self.bits + 1).numpy()


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
        counter = _Counter(part.codes, bits)
        for rows in part.queries.split(counter.together):
            total[rows.numpy()] += counter(queries[:, rows.numpy()])

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:  # NumPy and torch release the interpreter lock
        for part in parts:
            if part.codes.shape[1]:  # one part at a time: only one copy of a part's codes is held
                slices = part.queries.tensor_split(min(threads, max(len(part.queries), 1)))
                list(pool.map(count, [part._replace(queries=rows) for rows in slices]))
    return torch.from_numpy(total)


def histograms_by_product(queries: Words, parts: Iterator[Part], bits: int, device: torch.device) -> Tensor:
    """The counts of :func:`histograms` by products of +-1, as a GPU likes them.

    Every product is a whole number of at most ``bits``, which float32 holds (and TF32 sums in float32).
    """
    total = torch.zeros((queries.shape[1], bits + 1), dtype=torch.int64)
    for rows, codes in parts:
        if not codes.shape[1]:
            continue
        theirs = _signs(codes, bits, device)
        for some in rows.split(max(_pairs_at_once(device) // len(theirs), 1)):
            distance = (bits - _signs(queries[:, some.numpy()], bits, device) @ theirs.T) / 2
            first_cell = torch.arange(len(some), device=device)[:, None] * (bits + 1)
            counts = torch.bincount((distance.long() + first_cell).view(-1), minlength=len(some) * (bits + 1))
            total[some] += counts.view(len(some), bits + 1).cpu()
    return total


def _signs(words: Words, bits: int, device: torch.device) -> Tensor:
    """(w, n) words -> (n, bits) float32 of +-1."""
    data = torch.from_numpy(np.ascontiguousarray(words.T).view(np.uint8)).to(device)
    ones = (data[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
    return ones.flatten(1)[:, :bits].float() * 2 - 1


def _pairs_at_once(device: torch.device) -> int:
    """Pairs whose product, distance and cell fit in a quarter of the free memory, at 32 bytes a pair."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 25
    return min(free // 128, 1 << 28)
