"""Which detection takes which ground truth, all images at once.

A *cell* is one class in one image: the unit in which COCO matches. Detections are put into curve order (class, best
score first) once; from then on a detection is known by its place there. Matching itself sees no boxes: it takes sparse
pairs with an overlap, so anything that has an overlap (boxes, masks) can be matched.

Two rules: COCO's greedy one (pycocotools 2.0.11, ``COCOeval.evaluateImg``), and that of PASCAL VOC and Open Images, in
which a detection looks at one ground truth alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from map_metrics.detection.overlap import box_overlap
from map_metrics.detection.pairs import Overlaps, blocks, ranges
from map_metrics.ranking import first_of_runs, inverse, lexsort, take, true_rows


class Detections(NamedTuple):
    """Detected boxes, images ascending, in input order inside an image.

    Attributes:
        image: (n,) int64, dense rank of the image.
        label: (n,) int64, any value.
        score: (n,) float64, larger is better.
        box: (n, 4) float64, x, y, width, height in pixels.
        area: (n,) float64, square pixels.
    """

    image: Tensor
    label: Tensor
    score: Tensor
    box: Tensor
    area: Tensor


class GroundTruths(NamedTuple):
    """True boxes, images ascending, in input order inside an image.

    Attributes:
        image: (g,) int64, dense rank of the image.
        label: (g,) int64, any value.
        box: (g, 4) float64, x, y, width, height in pixels.
        crowd: (g,) bool, a region of many objects: absorbs any number of detections and is never missed.
        ignore: (g,) bool, one object that does not count: absorbs one detection and is never missed.
        area: (g,) float64, square pixels.
    """

    image: Tensor
    label: Tensor
    box: Tensor
    crowd: Tensor
    ignore: Tensor
    area: Tensor


NEGATIVE, NOT_EXHAUSTIVE, POSITIVE = range(3)


class ImageLabels(NamedTuple):
    """What is known of whole images, apart from their boxes; in any order.

    Attributes:
        image: (k,) int64, dense rank of the image.
        label: (k,) int64, any value.
        kind: (k,) int64: ``NEGATIVE``, verified to be absent; ``NOT_EXHAUSTIVE``, not every object of it has a box;
            ``POSITIVE``, verified to be present.
    """

    image: Tensor
    label: Tensor
    kind: Tensor


class Ranking(NamedTuple):
    """Detections in curve order: (class, score descending, image, input position). A place is an index in that order.

    Attributes:
        row: (n,) int64, input row of each place.
        label: (n,) int64, rank of the class.
        position: (n,) int64, how many detections of its own cell stand before each.
        by_cell: (n,) int64, places in the order of (image, class, score descending, input position).
        cell: (n,) int64, the cell of each entry of ``by_cell``, ascending.
    """

    row: Tensor
    label: Tensor
    position: Tensor
    by_cell: Tensor
    cell: Tensor


class Pairs(NamedTuple):
    """Detections and ground truths of one cell that overlap, ordered by (cell, detection, truth).

    Attributes:
        detection: (P,) int64, place in curve order.
        truth: (P,) int64, row of the ground truths.
        overlap: (P,) float64.
    """

    detection: Tensor
    truth: Tensor
    overlap: Tensor


class Matches(NamedTuple):
    """Who takes whom where, ordered by detection.

    Attributes:
        detection: (E,) int64, place in curve order.
        truth: (E,) int64, row of the ground truths.
        first: (E,) int64, the lowest threshold (its index) at which the match stands.
        stop: (E,) int64, the first threshold above at which it does not.
        again: (E,) bool, the truth is a group that a better detection has found: this one is ignored.
        areas: (A, E) bool, the area ranges in which it stands.
    """

    detection: Tensor
    truth: Tensor
    first: Tensor
    stop: Tensor
    again: Tensor
    areas: Tensor


def cell_of(rows: Detections | GroundTruths | ImageLabels, num_classes: int) -> Tensor:
    """Number of each row's cell, in the order of (image, class), where ``label`` is the rank of the class."""
    return rows.image * num_classes + rows.label


def curve_order(label: Tensor, score: Tensor) -> Tensor:
    """Order of (label, score descending, input position); labels from 0, below 2^31."""
    score = score + 0.0  # turns -0.0 into 0.0
    single = score.float()
    if torch.equal(single.double(), score):  # scores that came as float32 leave room for the label: one sort
        return lexsort((label + 1) * 2**32 - _ascending(single.view(torch.int32)).long())
    return lexsort(label, ~_ascending(score.view(torch.int64)))


def _ascending(bits: Tensor) -> Tensor:
    """Integers in the order of the floats with these bits."""
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def rank_detections(detections: Detections, num_classes: int) -> Ranking:
    """Put detections into curve order, where ``label`` is the rank of the class."""
    row = curve_order(detections.label, detections.score)
    label = torch.arange(num_classes).repeat_interleave(torch.bincount(detections.label, minlength=num_classes))
    cell, by_cell = torch.sort(take(detections.image, row) * num_classes + label, stable=True)
    place = torch.arange(len(row))
    position = inverse(by_cell, place - torch.where(first_of_runs(cell), place, 0).cummax(0).values)
    return Ranking(row, label, position, by_cell, cell)


def box_pairs(
    detections: Detections, ranking: Ranking, truths: GroundTruths, cell: Tensor, cap: int, lowest: float
) -> Pairs:
    """Pairs of boxes of one cell whose overlap is at least ``lowest``, the first ``cap`` detections of a cell counting.

    Args:
        detections: the rows.
        ranking: their order.
        truths: sorted by cell.
        cell: (g,) int64, cell of each ground truth.
        cap: the largest number of detections of a cell.
        lowest: overlap from which a pair is kept.
    """
    start = true_rows(first_of_runs(cell)).numpy()  # of the ground truths of each occupied cell
    occupied, ranked = cell.numpy()[start], ranking.cell.numpy()
    num_truths = np.diff(start, append=len(cell))
    first = np.searchsorted(ranked, occupied)
    num_detections = np.minimum(np.searchsorted(ranked, occupied, side="right") - first, cap)
    detection = np.take(ranking.by_cell.numpy(), ranges(first, num_detections))
    start, num_truths = np.repeat(start, num_detections), np.repeat(num_truths, num_detections)
    box = np.take(detections.box.numpy(), np.take(ranking.row.numpy(), detection), axis=0).T.copy()
    true, crowd = truths.box.numpy().T.copy(), truths.crowd.numpy()
    kept = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for block in blocks(num_truths):
        repeats = num_truths[block]
        truth = ranges(start[block], repeats)
        overlap = box_overlap(np.repeat(box[:, block], repeats, 1), np.take(true, truth, 1), np.take(crowd, truth))
        keep = np.flatnonzero(overlap >= lowest)
        kept.append((np.repeat(detection[block], repeats)[keep], truth[keep], overlap[keep]))
    return Pairs(*(torch.from_numpy(np.concatenate(column)) for column in zip(*kept, strict=True)))


def stored_pairs(
    overlaps: Overlaps,
    ranking: Ranking,
    detection_rows: Tensor,
    truth_rows: Tensor,
    cell: Tensor,
    cap: int,
    lowest: float,
) -> Pairs:
    """The same from overlaps that were measured before.

    Args:
        overlaps: pairs by the rows they had then.
        ranking: the order of the detections.
        detection_rows: (n,) int64, the row that each detection had.
        truth_rows: (g,) int64, the row that each ground truth had, sorted by cell as ``cell`` is.
        cell: (g,) int64, cell of each ground truth.
        cap: the largest number of detections of a cell.
        lowest: overlap from which a pair is kept.
    """
    cell_of_place = inverse(ranking.by_cell, ranking.cell)
    detection = take(inverse(take(detection_rows, ranking.row)), overlaps.detection)
    truth = take(inverse(truth_rows), overlaps.truth)
    same = take(cell_of_place, detection) == take(cell, truth)
    keep = true_rows(same & (take(ranking.position, detection) < cap) & (overlaps.value >= lowest))
    detection, truth, value = take(detection, keep), take(truth, keep), take(overlaps.value, keep)
    order = lexsort(take(cell, truth), detection, truth)  # places of one cell ascend as its detections take their turns
    return Pairs(take(detection, order), take(truth, order), take(value, order))


def effective(iou_thresholds: Sequence[float], *, strict: bool = False) -> Tensor:
    """(T,) float64 thresholds as pycocotools applies them: an overlap one rounding below 1 passes a threshold of 1.

    Those that an overlap must exceed are left alone.
    """
    return torch.tensor(iou_thresholds, dtype=torch.float64).clamp(max=1.0 if strict else 1 - 1e-10)


def match(
    pairs: Pairs, cell: Tensor, crowd: Tensor, ignored: Tensor, thresholds: Tensor, *, strict: bool = False
) -> Matches:
    """COCO's greedy matching for all thresholds and area ranges.

    In the order of score, a detection takes the free ground truth with the largest overlap that meets the threshold:
    one that counts before an ignored one, the later one among equals. A crowd is always free.

    Args:
        pairs: candidates, all at or above the lowest threshold.
        cell: (g,) int64, cell of each ground truth.
        crowd: (g,) bool.
        ignored: (A, g) bool, ground truths that do not count in an area range; crowds never do.
        thresholds: (T,) float64, ascending.
        strict: an overlap must exceed a threshold.
    """
    reach = torch.searchsorted(thresholds, pairs.overlap, right=not strict)  # thresholds 0 .. reach - 1 are met
    # A truth none of whose candidates has another candidate is settled on its own, whatever is ignored.
    degree = torch.bincount(pairs.detection)
    contested = torch.zeros(len(crowd), dtype=torch.bool)
    contested[pairs.truth[degree[pairs.detection] > 1]] = True
    contested = contested[pairs.truth]
    alone, rest = (~contested).nonzero()[:, 0], contested.nonzero()[:, 0]
    parts = (
        _match_alone(pairs.detection[alone], pairs.truth[alone], reach[alone], crowd, len(ignored)),
        _match_in_rounds(
            Pairs(*(column[rest] for column in pairs)), reach[rest], cell, crowd, ignored, len(thresholds)
        ),
    )
    joined = Matches(*(torch.cat(column, -1) for column in zip(*parts, strict=True)))
    order = lexsort(joined.detection)
    return Matches(*(column[..., order] for column in joined))


def _match_alone(detection: Tensor, truth: Tensor, reach: Tensor, crowd: Tensor, num_areas: int) -> Matches:
    """Match detections of one candidate each: at a threshold, the first of them to reach it takes the truth."""
    order = lexsort(truth)
    detection, truth, reach = detection[order], truth[order], reach[order]
    stride = int(reach.max()) + 1 if len(reach) else 1
    best = torch.cummax(truth * stride + reach, 0).values - truth * stride  # restarts at every truth
    before = torch.zeros_like(best)
    before[1:] = torch.where(truth[1:] == truth[:-1], best[:-1], 0)
    before[crowd[truth]] = 0
    wins = (reach > before).nonzero()[:, 0]
    areas = torch.ones(num_areas, len(wins), dtype=torch.bool)
    return Matches(
        detection[wins], truth[wins], before[wins], reach[wins], torch.zeros_like(wins, dtype=torch.bool), areas
    )


def _match_in_rounds(
    pairs: Pairs, reach: Tensor, cell: Tensor, crowd: Tensor, ignored: Tensor, num_thresholds: int
) -> Matches:
    """Match one detection of every cell at a time: round r handles the r-th of each cell, all cells at once."""
    detection, truth, overlap = (column.numpy() for column in pairs)
    turn = _turns(detection, cell.numpy()[truth])
    order = np.lexsort((truth, overlap, detection, turn))  # inside a detection the best candidate comes last
    detection, truth, turn = detection[order], truth[order], turn[order]
    met = np.arange(num_thresholds) < reach.numpy()[order, None]  # (P, T)
    rows, local = np.unique(truth, return_inverse=True)
    size = len(truth)
    preference = np.arange(size)[:, None] + np.where(ignored.numpy()[:, truth].T, 0, size)  # (P, A)
    taken = np.zeros((len(rows), num_thresholds, len(ignored)), dtype=bool)
    lasting = ~crowd.numpy()[truth]
    found = [(np.zeros(0, dtype=np.int64),) * 3]
    for lo, hi in pairwise(np.searchsorted(turn, np.arange(turn[-1] + 2 if size else 1)).tolist()):
        free = met[lo:hi, :, None] & ~taken[local[lo:hi]]
        choice = np.where(free, preference[lo:hi, None], -1)
        starts = np.flatnonzero(np.diff(detection[lo:hi], prepend=-1))
        best = np.maximum.reduceat(choice, starts, axis=0)
        which, threshold, area = np.nonzero(best >= 0)
        pair = best[which, threshold, area] % size
        taken[local[pair], threshold, area] = lasting[pair]
        found.append((pair, threshold, area))
    pair, threshold, area = (np.concatenate(column) for column in zip(*found, strict=True))
    first = torch.from_numpy(threshold)
    again = torch.zeros(len(first), dtype=torch.bool)
    areas = torch.from_numpy(np.arange(len(ignored))[:, None] == area)
    return Matches(torch.from_numpy(detection[pair]), torch.from_numpy(truth[pair]), first, first + 1, again, areas)


def _turns(detection: NDArray[np.int64], cell: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of other detections of the same cell before each pair's, for pairs ordered by (cell, detection)."""
    new_detection = np.diff(detection, prepend=-1) != 0
    new_cell = np.diff(cell, prepend=-1) != 0
    count = np.cumsum(new_detection) - 1
    return count - np.maximum.accumulate(np.where(new_cell, count, 0))
