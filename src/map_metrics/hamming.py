"""Hamming distances of packed codes: per query, how many gallery items (and how many relevant ones) at each distance.

Two histograms over bits + 1 distances are all that average precision needs of a query: no sort, no queries x gallery
matrix, and histograms of parts of a gallery add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK = 1 << 19  # pairs at a time

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


class Part(NamedTuple):
    """Some queries, the codes they are counted against, and how those stand to them.

    Attributes:
        queries: (q,) indices of the queries.
        codes: (w, n) words.
        kinds: (n,) bool: counted apart; of a gallery the relevant items.
    """

    queries: Tensor
    codes: Words
    kinds: npt.NDArray[np.bool_]


class _Counter:
    """One thread's buffers for counting.

    Each NumPy or torch call works on about ``_BLOCK`` pairs: in shorter ones the threads spend more time in the queue
    for the interpreter lock than in counting, longer ones leave the cache.
    """

    def __init__(self, bits: int) -> None:
        self.width = 2 * (bits + 1)  # cells of a query: every distance of the one kind, then of the other
        self.xor = np.empty(_BLOCK, np.uint64)
        self.count = np.empty(_BLOCK, np.uint8)
        self.distance = np.empty(_BLOCK, _dtype_of(self.width))
        self.cell = np.empty(_BLOCK, np.int32)

    def __call__(self, queries: Words, codes: Words, kinds: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """(q, width) counts of queries (w, q)."""
        q, n = queries.shape[1], codes.shape[1]
        shift = kinds.astype(self.distance.dtype) * self.distance.dtype.type(self.width // 2)
        together = max(_BLOCK // max(n, self.width), 1)
        counts = np.zeros((q, self.width), np.int64)
        for row in range(0, q, together):
            for start in range(0, n, _BLOCK):
                items, rows = slice(start, start + _BLOCK), slice(row, row + together)
                counts[rows] += self._block(queries[:, rows], codes[:, items], shift[items])
        return counts

    def _block(self, queries: Words, codes: Words, shift: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        q, n = queries.shape[1], codes.shape[1]
        xor, count, cell = (buffer[: q * n].reshape(q, n) for buffer in (self.xor, self.count, self.distance))
        for i, (word, code) in enumerate(zip(codes, queries, strict=True)):
            np.bitwise_xor(word, code[:, None], out=xor)
            if i == 0:
                np.bitwise_count(xor, out=cell)
            else:
                np.add(cell, np.bitwise_count(xor, out=count), out=cell)
        np.add(cell, shift, out=cell)
        if q > 1:
            first = np.arange(q)[:, None] * self.width
            dtype = _dtype_of(q * self.width)
            cell = np.add(cell, first.astype(dtype), out=self.cell.view(dtype)[: q * n].reshape(q, n))
        counts = torch.bincount(torch.from_numpy(cell.reshape(-1)), minlength=q * self.width)
        return counts.view(q, self.width).numpy()


def histograms(queries: Words, parts: Iterator[Part], bits: int) -> Tensor:
    """(Q, 2, bits + 1) int64: for each query, the items of its part at each distance; a query stands in one part."""
    total = np.zeros((queries.shape[1], 2 * (bits + 1)), np.int64)  # torch's inference mode ends at the thread
    threads = torch.get_num_threads()
    counters = [_Counter(bits) for _ in range(threads)]

    def count(part: Part) -> None:
        rows, counter = part.queries.numpy(), counters.pop()
        total[rows] = counter(queries[:, rows], part.codes, part.kinds)
        counters.append(counter)

    pieces = (
        part._replace(queries=rows)
        for part in parts
        if part.codes.shape[1] and len(part.queries)
        for rows in part.queries.tensor_split(min(threads, len(part.queries)))
    )
    with ThreadPoolExecutor(threads) as pool:  # NumPy and torch release the interpreter lock
        while some := list(islice(pieces, 2 * threads)):  # not all parts are held at once
            list(pool.map(count, some))
    return torch.from_numpy(total).view(-1, 2, bits + 1)


def histograms_by_product(queries: Words, parts: Iterator[Part], bits: int, device: torch.device) -> Tensor:
    """The counts of :func:`histograms` by products of +-1, as a GPU likes them.

    Every product is a whole number of at most ``bits``, which float32 holds (and TF32 sums in float32).
    """
    width = 2 * (bits + 1)
    total = torch.zeros((queries.shape[1], width), dtype=torch.int64)
    for rows, codes, kinds in parts:
        if not codes.shape[1]:
            continue
        theirs, shift = _signs(codes, bits, device), torch.from_numpy(kinds).to(device) * (bits + 1)
        for some in rows.split(max(_pairs_at_once(device) // len(theirs), 1)):
            distance = (bits - _signs(queries[:, some.numpy()], bits, device) @ theirs.T) / 2
            first_cell = torch.arange(len(some), device=device)[:, None] * width
            counts = torch.bincount((distance.long() + shift + first_cell).view(-1), minlength=len(some) * width)
            total[some] = counts.view(len(some), width).cpu()
    return total.view(-1, 2, bits + 1)


def _signs(words: Words, bits: int, device: torch.device) -> Tensor:
    """(w, n) words -> (n, bits) float32 of +-1."""
    data = torch.from_numpy(np.ascontiguousarray(words.T).view(np.uint8)).to(device)
    ones = (data[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
    return ones.flatten(1)[:, :bits].float() * 2 - 1


def _pairs_at_once(device: torch.device) -> int:
    """Pairs whose product, distance and cell fit in a quarter of the free memory, at 32 bytes a pair."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 25
    return min(free // 128, 1 << 28)
