"""The rule of PASCAL VOC and Open Images: a detection looks at one ground truth alone, the one it overlaps most."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from map_metrics.detection.matching import Matches, Pairs

Ints = NDArray[np.int64]


def match_best(
    pairs: Pairs, cell: Tensor, crowd: Tensor, ignored: Tensor, thresholds: Tensor, *, strict: bool = False
) -> Matches:
    """Match by the best overlap, for all thresholds and area ranges.

    A detection whose best ground truth (the first among equals, taken or not) meets the threshold takes it if it is the
    first to do so, is ignored if that ground truth does not count, and otherwise is a false positive - unless its best
    crowd meets the threshold: a crowd absorbs whatever took no single object, and if crowds count, the first that it
    absorbs finds it. As in TensorFlow's ``PerImageEvaluation._compute_tp_fp_for_single_class``; without crowds it
    is the rule of the VOC devkit.

    Args:
        pairs: candidates, all at or above the lowest threshold, by (cell, detection, truth).
        cell: (g,) int64, cell of each ground truth.
        crowd: (g,) bool, overlaps with it are shares of the detection.
        ignored: (A, g) bool, ground truths that do not count in an area range.
        thresholds: (T,) float64, ascending.
        strict: an overlap must exceed a threshold.
    """
    reach = torch.searchsorted(thresholds, pairs.overlap, right=not strict).numpy()  # thresholds 0 .. reach - 1 are met
    detection, truth, overlap = (column.numpy() for column in pairs)
    grouped = crowd.numpy()[truth]
    singles, groups = (_best(detection, truth, overlap, np.flatnonzero(rows)) for rows in (~grouped, grouped))
    blocks = []
    for t, a in product(range(len(thresholds)), range(len(ignored))):
        excused = ignored[a].numpy()
        rows = singles[reach[singles] > t]
        rows = rows[excused[truth[rows]] | _first(truth[rows])]
        late = groups[(reach[groups] > t) & ~np.isin(detection[groups], detection[rows])]
        again = ~_first(truth[late])
        blocks.append(_stand(np.append(rows, late), np.append(np.zeros(len(rows), dtype=bool), again), t, a))
    row, again, threshold, area = (np.concatenate(column) for column in zip(*blocks, strict=True))
    order = np.argsort(detection[row], kind="stable")
    row, first = row[order], torch.from_numpy(threshold[order])
    areas = torch.from_numpy(np.arange(len(ignored))[:, None] == area[order])
    columns = torch.from_numpy(detection[row]), torch.from_numpy(truth[row])
    return Matches(*columns, first, first + 1, torch.from_numpy(again[order]), areas)


def _best(detection: Ints, truth: Ints, overlap: NDArray[np.float64], rows: Ints) -> Ints:
    """Of the given pairs, that of each detection with the largest overlap, the first among equals; by detection."""
    rows = rows[np.lexsort((truth[rows], -overlap[rows], detection[rows]))]
    return rows[np.diff(detection[rows], prepend=-1) != 0]


def _first(values: Ints) -> NDArray[np.bool_]:
    """True where a value comes for the first time."""
    first = np.zeros(len(values), dtype=bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def _stand(
    rows: Ints, again: NDArray[np.bool_], threshold: int, area: int
) -> tuple[Ints, NDArray[np.bool_], Ints, Ints]:
    return rows, again, np.full(len(rows), threshold), np.full(len(rows), area)
