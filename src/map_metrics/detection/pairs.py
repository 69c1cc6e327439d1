"""Pairs of one detection and one ground truth of the same image, and what a pair overlap is stored as."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PAIRS_AT_ONCE = 1 << 16  # that many pairs and what is computed from them stay in the cache

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class Overlaps(NamedTuple):
    """Pairs of one image, whatever their classes, whose overlap is above 0; no pair twice, in any order.

    Attributes:
        detection: (P,) int64, row of the detections.
        truth: (P,) int64, row of the ground truths.
        value: (P,) float64 in (0, 1].
    """

    detection: Tensor
    truth: Tensor
    value: Tensor


def ranges(start: Integers, length: Integers) -> Integers:
    """``start[i], start[i] + 1, ...`` of ``length[i]`` values each, one range after the other."""
    stop = length.cumsum()
    return np.arange(stop[-1] if len(stop) else 0) + np.repeat(start - stop + length, length)


def blocks(weight: Integers) -> Iterator[slice]:
    """Stretches of rows that together weigh about ``PAIRS_AT_ONCE``; rows of weight 0 may be left out."""
    total = weight.cumsum()
    starts = np.arange(0, total[-1] if len(total) else 0, PAIRS_AT_ONCE)
    bounds = np.unique(np.searchsorted(total, starts, side="right")).tolist()
    return (slice(low, high) for low, high in pairwise([*bounds, len(total)]))


def image_pairs(num_detections: Integers, num_truths: Integers) -> Iterator[tuple[Integers, Integers]]:
    """All pairs (detection, truth) of the same image, block by block.

    Args:
        num_detections: (images,) int64, detections of each image; their rows stand one image after the other.
        num_truths: (images,) int64, the same of the ground truths.
    """
    first = np.repeat(num_truths.cumsum() - num_truths, num_detections)
    repeats = np.repeat(num_truths, num_detections)
    rows = np.arange(len(repeats))
    for block in blocks(repeats):
        yield np.repeat(rows[block], repeats[block]), ranges(first[block], repeats[block])


def collect(parts: list[tuple[Integers, Integers, Floats]]) -> Overlaps:
    """Blocks of (detection, truth, value) in order -> one record, without the pairs that do not overlap."""
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)), *parts]
    detection, truth, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    keep = np.flatnonzero(value > 0)
    return Overlaps(*(torch.from_numpy(column[keep]) for column in (detection, truth, value)))


def array(values: Tensor) -> NDArray[Any]:
    """A NumPy view of a tensor, or a copy where it lies on a device."""
    return values.detach().cpu().numpy()
